/** The totals of a run, and the step that cost most. */

import { addressOf } from '../../router.mjs';
import { mostExpensive, totalsOf } from '../../runs.mjs';
import { formatNumber, known, parts, t } from '../../strings.mjs';
import { formatCost, formatDuration } from '../../text.mjs';
import { html } from '../ui.mjs';

/**
 * The figures of a run: the key of the label, the value as text, and the number for comparisons of two runs.
 *
 * @typedef {{key: Key, text: string, value?: number | null, format?: (value: number) => string}} Figure
 * @param {StoredRun} run
 * @param {Step[]} steps
 * @returns {Figure[]}
 */
export function figuresOf(run, steps) {
  const totals = totalsOf(run, steps);
  const tokens = (/** @type {number} */ value) => formatNumber(value);
  return [
    { key: 'run.status', text: resultText(totals.status) },
    { key: 'run.model', text: totals.model ?? '' },
    {
      key: 'run.cost',
      text: totals.cost === null ? '?' : formatCost(totals.cost),
      value: totals.cost,
      format: formatCost,
    },
    { key: 'run.tokensIn', text: tokens(totals.tokensIn), value: totals.tokensIn, format: tokens },
    { key: 'run.cached', text: tokens(totals.cached), value: totals.cached, format: tokens },
    { key: 'run.tokensOut', text: tokens(totals.tokensOut), value: totals.tokensOut, format: tokens },
    { key: 'run.requests', text: tokens(totals.requests), value: totals.requests, format: tokens },
    { key: 'run.calls', text: tokens(totals.calls), value: totals.calls, format: tokens },
    {
      key: 'run.duration',
      text: formatDuration(totals.duration),
      value: totals.duration,
      format: formatDuration,
    },
    { key: 'run.waited', text: formatDuration(totals.waited), value: totals.waited, format: formatDuration },
  ];
}

/** How a run or a step ended, in words. @param {string} status */
export function resultText(status) {
  return (
    known(`run.result.${status}`, null) ??
    known(`outcome.${status}`, null) ??
    known(`approval.outcome.${status}`, null) ??
    known(`tool.status.${status}`, null) ??
    known(`tool.kind.${status}`, status.replaceAll('_', ' '))
  );
}

export function Summary(/** @type {{run: StoredRun, steps: Step[]}} */ { run, steps }) {
  const totals = totalsOf(run, steps);
  const unpriced = totals.cost === null && totals.tokensIn > 0;
  return html`<section class="run-summary" aria-label=${t('run.title')}>
    <dl>
      ${figuresOf(run, steps).map(
        ({ key, text }) =>
          html`<div key=${key}>
            <dt class="muted text-xs">${t(key)}</dt>
            <dd>${text}</dd>
          </div>`,
      )}
    </dl>
    <${Most} runId=${run.run_id} steps=${steps} cost=${totals.cost} />
    ${unpriced && html`<p class="muted">${t('run.unpriced')}</p>`}
  </section>`;
}

function Most(/** @type {{runId: string, steps: Step[], cost: number | null}} */ { runId, steps, cost }) {
  const most = mostExpensive(steps, cost);
  if (!most) return null;
  const name = t('run.mostModel', { number: most.number });
  const link = html`<a href=${addressOf('runs', runId, most.step.step_id)}>${name}</a>`;
  const share = `${Math.round(most.share * 100)} %`;
  return html`<p class="run-most">
    ${parts('run.most', { share, step: link, tokens: most.step.usage?.input_tokens })}
  </p>`;
}
