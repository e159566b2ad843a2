/** The runs of all tenants that have not ended: what they wait for, and how an operator cancels one. */

import { useEffect, useRef, useState } from 'preact/hooks';

import { addressOf } from '../../router.mjs';
import { explain, parts, t } from '../../strings.mjs';
import { formatWhen } from '../../text.mjs';
import { Dialog, html, useStore } from '../ui.mjs';
import { Records } from './records.mjs';

const STATES = ['awaiting_approval', 'awaiting_input', 'queued'];
const REFRESH_MS = 5_000;

/** The open runs, oldest first, read again every five seconds until further pages are shown. */
export function useOpenRuns(store) {
  const [state, setState] = useState({ pages: null, error: null });
  const further = useRef(false);
  // The last request alone is shown: an earlier one may end after it.
  const last = useRef(0);
  const show = (reading, join) => {
    const request = ++last.current;
    return Promise.all(reading).then(
      (pages) => request === last.current && setState((before) => ({ pages: join(before.pages, pages), error: null })),
      (failure) => request === last.current && setState((before) => ({ ...before, error: explain(failure) })),
    );
  };
  const read = () => {
    further.current = false;
    return show(STATES.map((name) => store.api.openRuns(name)), (_, pages) => pages);
  };
  const readMore = () => {
    further.current = true;
    const next = (page, name) => (page.next ? store.api.openRuns(name, page.next) : { items: [], next: null });
    return show(STATES.map((name, at) => next(state.pages[at], name)), (before, pages) => pages.map((page, at) => ({ items: [...before[at].items, ...page.items], next: page.next })));
  };
  useEffect(() => {
    read();
    const timer = setInterval(() => !document.hidden && !further.current && read(), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  return { ...state, read, readMore };
}

export function OpenRuns({ pages, error, read, readMore }) {
  const [chosen, setChosen] = useState(null);
  const [cancelled, setCancelled] = useState(new Set());
  const runs = (pages ?? []).flatMap((page, at) => page.items.map((run) => ({ ...run, state: STATES[at], name: `${run.tenant} ${run.run_id}` })));
  runs.sort((one, other) => Date.parse(one.since) - Date.parse(other.since));
  const rows = runs.map((run) => [
    run.tenant,
    html`<${RunName} run=${run} />`,
    html`<span class=${run.state === 'queued' ? 'status running' : 'status'}>${t(`operator.run.${run.state}`)}</span>`,
    formatWhen(run.since),
    cancelled.has(run.name)
      ? html`<span class="status">${t('operator.cancelling')}</span>`
      : html`<button type="button" class="link" aria-label=${t('operator.cancelOf', { id: run.run_id })} onClick=${() => setChosen(run)}>${t('operator.cancel')}</button>`,
  ]);
  const done = () => {
    setCancelled(new Set([...cancelled, chosen.name]));
    setChosen(null);
    read();
  };
  const columns = [t('operator.tenant'), t('operator.run'), t('operator.state'), t('operator.when'), t('operator.action')];
  return html`${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${pages && html`<${Records} title=${t('operator.openRuns')} columns=${columns} rows=${rows} keys=${runs.map((run) => `${run.state} ${run.name}`)} empty=${t('operator.noOpenRuns')} />`}
    ${pages?.some((page) => page.next) && html`<button type="button" class="button" onClick=${readMore}>${t('operator.moreRuns')}</button>`}
    ${chosen && html`<${Cancellation} run=${chosen} onDone=${done} onClose=${() => setChosen(null)} />`}`;
}

/** The id of a run. It is a link in the operator's own tenant: of others, an operator may not read what a run did. */
function RunName({ run }) {
  const own = run.tenant === useStore().welcome.value?.tenant;
  const name = html`<code>${run.run_id}</code>`;
  return own ? html`<a href=${addressOf('runs', run.run_id)}>${name}</a>` : name;
}

function Cancellation({ run, onDone, onClose }) {
  const store = useStore();
  const [reason, setReason] = useState('');
  const [error, setError] = useState(null);
  const submit = (event) => {
    event.preventDefault();
    return store.api.cancelOpenRun(run.tenant, run.run_id, reason.trim()).then(onDone, (failure) => setError(explain(failure)));
  };
  return html`<${Dialog} title=${t('operator.cancelTitle')} onClose=${onClose}>
    <form class="dialog-body operator-dialog" onSubmit=${submit}>
      <p>${parts('operator.cancelQuestion', { run: html`<code>${run.run_id}</code>`, tenant: html`<strong>${run.tenant}</strong>` })}</p>
      <label class="form-field"><span>${t('operator.reason')}</span><textarea required autofocus rows="2" maxlength="2000" value=${reason} onInput=${(event) => setReason(event.target.value)} /></label>
      ${error && html`<p class="form-error" role="alert">${error}</p>`}
      <div class="dialog-actions">
        <button type="button" class="button" onClick=${onClose}>${t('operator.keepRun')}</button>
        <button class="button danger" disabled=${!reason.trim()}>${t('operator.cancelTitle')}</button>
      </div>
    </form>
  <//>`;
}
