/** One run: its steps with their exact requests and results, its time and its cost. */

import { useEffect, useState } from 'preact/hooks';

import { conversationOf } from '../client/following.mjs';
import { Comparison } from '../components/runs/comparison.mjs';
import { RunAgain } from '../components/runs/again.mjs';
import { StepDetail } from '../components/runs/detail.mjs';
import { StepList } from '../components/runs/steps.mjs';
import { Summary } from '../components/runs/summary.mjs';
import { Frame } from '../components/view.mjs';
import { Icon, html, useStore } from '../components/ui.mjs';
import { addressOf } from '../router.mjs';
import { explain, t } from '../strings.mjs';
import { formatWhen } from '../text.mjs';

const COMPARE = 'with';
const isOpen = (/** @type {Run} */ run) => run && !run.finished_at;

/** @param {{path: string[]}} properties `{run}`, `{run}/{step}` or `{run}/with/{other run}` */
export default function RunView({ path }) {
  const [id, second, other] = path;
  if (!id) return html`<${Frame} title=${t('run.title')}><p class="empty">${t('run.none')}</p><//>`;
  const compared = second === COMPARE ? other : null;
  return html`<${OneRun} key=${id} id=${id} stepId=${compared ? null : second} other=${compared} />`;
}

function OneRun(/** @type {{id: string, stepId: string, other: string}} */ { id, stepId, other }) {
  const { run, steps, error } = useRun(id);
  const [again, setAgain] = useState(false);
  const conversationId = conversationOf(id);
  const actions = html`<a class="toggle" href=${`#/c/${conversationId}`} aria-label=${t('run.conversation')}
      ><${Icon} name="back" size=${16} /><span>${t('run.conversation')}</span></a
    >
    ${run && steps.length > 0 && html`<button type="button" class="toggle" aria-label=${t('run.again')} onClick=${() => setAgain(true)}><${Icon} name="refresh" size=${16} /><span>${t('run.again')}</span></button>`}`;
  return html`<${Frame} title=${t('run.title')} actions=${actions}>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${!run && !error && html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`}
    ${run && html`<${Siblings} run=${run} other=${other} />`}
    ${run && other && html`<${Compared} run=${run} steps=${steps} other=${other} />`}
    ${run && !other && html`<${Summary} run=${run} steps=${steps} />`}
    ${
      run &&
      !other &&
      html`<div class=${`run-parts ${stepId ? 'with-detail' : ''}`}>
        <${StepList} runId=${id} steps=${steps} current=${stepId} />
        ${stepId && html`<${StepDetail} key=${stepId} runId=${id} stepId=${stepId} version=${steps.find((step) => step.step_id === stepId)?.ended_at} />`}
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
  const store = useStore();
  const [read, setRead] = useState({ run: null, steps: [], error: null });
  const open = isOpen(read.run);
  // Only an open run is followed, because an ended run does not change.
  const events = open ? store.opened.follow(conversationOf(id)).value.lastSeq : null;
  useEffect(() => {
    let current = true;
    Promise.all([store.api.run(id), store.api.steps(id)]).then(
      ([run, steps]) => current && setRead({ run, steps, error: null }),
      (failure) => current && setRead((last) => ({ ...last, error: explain(failure) })),
    );
    return () => (current = false);
  }, [id, events]);
  return read;
}

function Compared(/** @type {{run: Run, steps: Step[], other: string}} */ { run, steps, other }) {
  const second = useRun(other);
  if (second.error) return html`<p class="form-error" role="alert">${second.error}</p>`;
  if (!second.run) return html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`;
  return html`<${Comparison} first=${{ run, steps }} second=${second} />`;
}

/** The other runs of the conversation, one of which can be compared. @param {{run: Run, other: string}} properties */
function Siblings({ run, other }) {
  const store = useStore();
  const [runs, setRuns] = useState(/** @type {StoredRun[]} */ ([]));
  useEffect(
    () => void store.api.runs(run.conversation_id).then(setRuns, () => {}),
    [run.conversation_id, other],
  );
  const others = runs.filter((one) => one.run_id !== run.run_id);
  if (!others.length) return null;
  const choose = (event) => {
    const chosen = event.target.value;
    location.hash = chosen ? addressOf('runs', run.run_id, COMPARE, chosen) : addressOf('runs', run.run_id);
  };
  return html`<label class="run-compare">
    <span>${t('run.compare')}</span>
    <select value=${other ?? ''} onChange=${choose}>
      <option value="">${t(other ? 'run.compareStop' : 'run.compareNone')}</option>
      ${others.map((one) => html`<option key=${one.run_id} value=${one.run_id}>${[formatWhen(one.asked_at), one.model].filter(Boolean).join(' · ')}</option>`)}
    </select>
  </label>`;
}
