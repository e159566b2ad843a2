/** The timeline of a run: one row for each step, with a bar for its time. */

import { useState } from 'preact/hooks';

import { addressOf } from '../../router.mjs';
import { ordered, placeOf } from '../../runs.mjs';
import { t } from '../../strings.mjs';
import { formatCost, formatDuration } from '../../text.mjs';
import { toolIcon } from '../icons.mjs';
import { Exact, Icon, html, memo } from '../ui.mjs';
import { resultText } from './summary.mjs';

/** @typedef {'time' | 'cost' | 'duration'} Order */
/** @type {[Order, Key][]} */
const ORDERS = [
  ['time', 'run.byTime'],
  ['cost', 'run.byCost'],
  ['duration', 'run.byDuration'],
];
/** @type {Record<string, string>} */
const ICONS = {
  queue: 'wait',
  model: 'model',
  compaction: 'compact',
  notice: 'info',
  approval: 'shield',
  input: 'question',
};

/** Statuses whose colour says that something went wrong. */
const BAD = new Set(
  'failed malformed timeout timed_out unknown_outcome denied tool_error length content_filter'.split(' '),
);
const GOOD = new Set(['done', 'stop', 'tool_calls', 'approved', 'provided', 'completed', 'summarised']);

/** @param {{runId: string, steps: Step[], current: string | null, label?: string}} properties */
export function StepList({ runId, steps, current, label = t('run.steps') }) {
  const [order, setOrder] = useState(/** @type {Order} */ ('time'));
  if (!steps.length) return html`<p class="empty">${t('run.noSteps')}</p>`;
  return html`<section class="run-steps" aria-label=${label}>
    <div class="choice" role="group" aria-label=${t('run.order')}>
      ${ORDERS.map(
        ([name, key]) =>
          html`<button
            key=${name}
            type="button"
            aria-pressed=${order === name}
            onClick=${() => setOrder(name)}>
            ${t(key)}
          </button>`,
      )}
    </div>
    <ol>
      ${ordered(steps, order).map((step) => {
        const { start, width } = placeOf(step, steps);
        return html`<${StepRow}
          key=${step.step_id}
          runId=${runId}
          step=${step}
          current=${step.step_id === current}
          start=${start}
          width=${width} />`;
      })}
    </ol>
  </section>`;
}

/** @typedef {{runId: string, step: Step, current: boolean, start: number, width: number}} StepProperties */

const StepRow = memo(function StepRow(/** @type {StepProperties} */ { runId, step, current, start, width }) {
  const { usage } = step;
  const counts = usage && { input: usage.input_tokens, cached: '', output: usage.output_tokens };
  const bar = { left: `${start * 100}%`, width: `${Math.max(width * 100, 0.5)}%` };
  return html`<li class=${`step ${step.kind}`}>
    <a href=${addressOf('runs', runId, step.step_id)} aria-current=${current ? 'true' : undefined}>
      <${Icon} name=${step.kind === 'tool' ? toolIcon(step.name) : ICONS[step.kind]} size=${16} />
      <span class="step-text">
        <span class="step-name">${nameOf(step)}</span>
        ${
          step.summary &&
          html`<span class="step-summary soft text-s"><${Exact} text=${step.summary} /></span>`
        }
      </span>
      <span class=${`status ${toneOf(step.status)}`}>${resultText(step.status)}</span>
      <span class="step-figures soft text-s">
        <span>${step.duration_ms === null ? '' : formatDuration(step.duration_ms)}</span>
        <span>${counts && t('usage.tokens', counts)}</span>
        <span>${usage ? formatCost(usage.cost_usd) : ''}</span>
      </span>
      <span class="step-bar" aria-hidden="true"><i style=${bar} /></span>
    </a>
  </li>`;
});

export function nameOf(/** @type {Step} */ step) {
  if (step.kind === 'tool') return step.name;
  if (step.by) return `${t(`run.kind.${step.kind}`)} · ${step.by}`;
  return t(`run.kind.${step.kind}`);
}

function toneOf(/** @type {string} */ status) {
  if (BAD.has(status)) return 'failed';
  if (GOOD.has(status)) return 'done';
  return status === 'running' ? 'running' : '';
}
