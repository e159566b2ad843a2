/** One run: its steps with their exact requests and results, its time and its cost. */

import { useState } from 'preact/hooks';

import { conversationOf } from '../client/following.mjs';
import { Comparison } from '../components/runs/comparison.mjs';
import { RunAgain } from '../components/runs/again.mjs';
import { StepDetail } from '../components/runs/detail.mjs';
import { StepList } from '../components/runs/steps.mjs';
import { Summary } from '../components/runs/summary.mjs';
import { Empty, FormError, useRead } from '../components/requests.mjs';
import { Frame } from '../components/view.mjs';
import { Action, Loading, html, useStore } from '../components/ui.mjs';
import { addressOf } from '../router.mjs';
import { t } from '../strings.mjs';
import { formatWhen } from '../text.mjs';

const COMPARE = 'with';
const isOpen = (/** @type {StoredRun | null} */ run) => run !== null && !run.finished_at;

/** @param {{path: string[]}} properties `{run}`, `{run}/{step}` or `{run}/with/{other run}` */
export default function RunView({ path }) {
  const [id, second, other] = path;
  if (!id)
    return html`<${Frame} title=${t('run.title')}>
      <${Empty} text=${t('run.none')}><a class="button" href="#/">${t('sidebar.new')}</a><//>
    <//>`;
  const compared = second === COMPARE ? other : null;
  return html`<${OneRun} key=${id} id=${id} stepId=${compared ? null : second} other=${compared} />`;
}

function OneRun(
  /** @type {{id: string, stepId: string | null, other: string | null}} */ { id, stepId, other },
) {
  const { run, steps, error } = useRun(id);
  const [again, setAgain] = useState(false);
  const conversationId = conversationOf(id);
  const actions = html`<${Action} icon="back" text=${t('timeline.label')} href=${`#/c/${conversationId}`} />
    ${
      run &&
      steps.length > 0 &&
      html`<${Action} icon="repeat" text=${t('run.again')} onClick=${() => setAgain(true)} />`
    }`;
  return html`<${Frame} title=${t('run.title')} actions=${actions}>
    <${FormError} error=${error} />
    ${!run && !error && html`<${Loading} />`} ${run && html`<${Siblings} run=${run} other=${other} />`}
    ${run && other && html`<${Compared} run=${run} steps=${steps} other=${other} />`}
    ${run && !other && html`<${Summary} run=${run} steps=${steps} />`}
    ${
      run &&
      !other &&
      html`<div class=${`run-parts ${stepId ? 'with-detail' : ''}`}>
        <${StepList} runId=${id} steps=${steps} current=${stepId} />
        ${
          stepId &&
          html`<${StepDetail}
            key=${stepId}
            runId=${id}
            stepId=${stepId}
            version=${steps.find((step) => step.step_id === stepId)?.ended_at} />`
        }
      </div>`
    }
    ${again && html`<${RunAgain} run=${run} steps=${steps} onClose=${() => setAgain(false)} />`}
  <//>`;
}

/**
 * The run and its steps, read again whenever its conversation has a new event while the run is open.
 *
 * @param {string} id
 */
function useRun(id) {
  const { api, opened } = useStore();
  const [open, setOpen] = useState(false);
  // Only an open run is followed, because an ended run does not change.
  const events = open ? opened.follow(conversationOf(id)).value.lastSeq : null;
  const read = () => Promise.all([api.run(id), api.steps(id)]);
  const { value, error } = useRead(read, [id, events]);
  const [run = null, steps = []] = value ?? [];
  if (open !== isOpen(run)) setOpen(!open);
  return { run, steps, error };
}

function Compared(/** @type {{run: StoredRun, steps: Step[], other: string}} */ { run, steps, other }) {
  const second = useRun(other);
  if (second.error) return html`<${FormError} error=${second.error} />`;
  if (!second.run) return html`<${Loading} />`;
  return html`<${Comparison} first=${{ run, steps }} second=${second} />`;
}

/** The other runs of the conversation, one of which can be compared. @param {{run: StoredRun, other: string | null}} properties */
function Siblings({ run, other }) {
  const { api } = useStore();
  const { value: runs } = useRead(
    () => api.items('run.list', { conversation_id: run.conversation_id }),
    [run.conversation_id, other],
  );
  const others = (runs ?? []).filter((one) => one.run_id !== run.run_id);
  if (!others.length) return null;
  const choose = (/** @type {PageEvent} */ event) => {
    const chosen = event.target.value;
    location.hash = chosen ? addressOf('runs', run.run_id, COMPARE, chosen) : addressOf('runs', run.run_id);
  };
  return html`<label class="run-compare wrap soft text-m">
    <span>${t('run.compare')}</span>
    <select value=${other ?? ''} onChange=${choose}>
      <option value="">${t(other ? 'run.compareStop' : 'run.compareNone')}</option>
      ${others.map(
        (one) =>
          html`<option key=${one.run_id} value=${one.run_id}>
            ${[formatWhen(one.asked_at), one.model].filter(Boolean).join(' · ')}
          </option>`,
      )}
    </select>
  </label>`;
}
