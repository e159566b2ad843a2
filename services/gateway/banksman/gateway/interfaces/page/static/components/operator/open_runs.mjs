/** The open runs of all tenants or of one: their states, with a button to cancel each. */

import { useState } from 'preact/hooks';

import { addressOf } from '../../router.mjs';
import { explain, parts, t } from '../../strings.mjs';
import { formatWhen } from '../../text.mjs';
import { Dialog, html, useStore } from '../ui.mjs';
import { usePages } from './pages.mjs';
import { Records } from './records.mjs';

const STATES = /** @type {const} */ (['awaiting_approval', 'awaiting_input', 'queued', 'queued_workflow']);
const REFRESH_MS = 5_000;
/** @type {Replies['operator.runs']} */
const END = { items: [], next: null };

/**
 * The open runs: each page contains the next runs of every state.
 *
 * @param {string | null} tenant null for all tenants
 * @param {Store} store
 */
export function useOpenRuns(store, tenant) {
  const load = async (/** @type {(number | null)[] | null} */ nexts) => {
    const wanted = (/** @type {typeof STATES[number]} */ state, /** @type {number} */ at) => {
      const after = nexts?.[at];
      if (nexts && !after) return END;
      return store.api.openRuns(state, { after: after ?? undefined, tenant: tenant ?? undefined });
    };
    const pages = await Promise.all(STATES.map(wanted));
    const items = pages.flatMap((page, at) =>
      page.items.map((run) => ({ ...run, state: STATES[at], name: `${run.tenant} ${run.run_id}` })),
    );
    const next = pages.map((page) => page.next);
    return { items, next: next.some(Boolean) ? next : null };
  };
  return usePages(load, { everyMs: REFRESH_MS, of: tenant });
}

/** @typedef {Item<'operator.runs'> & {state: string, name: string}} OpenRun */
/** @param {ReturnType<typeof useOpenRuns> & {tenant: string | null, onAll: () => void}} properties */
export function OpenRuns({ items, next, error, readMore, refresh, tenant, onAll }) {
  const [chosen, setChosen] = useState(/** @type {OpenRun | null} */ (null));
  const [cancelled, setCancelled] = useState(/** @type {Set<string>} */ (new Set()));
  const runs = (items ?? []).toSorted((one, other) => Date.parse(one.since) - Date.parse(other.since));
  const rows = runs.map((run) => [
    run.tenant,
    html`<${RunName} run=${run} />`,
    html`<span class=${run.state.startsWith('queued') ? 'status running' : 'status'}
      >${t(/** @type {Key} */ (`operator.run.${run.state}`))}</span
    >`,
    formatWhen(run.since),
    cancelled.has(run.name)
      ? html`<span class="status">${t('operator.cancelling')}</span>`
      : html`<button
          type="button"
          class="link"
          aria-label=${t('operator.cancelOf', { id: run.run_id })}
          onClick=${() => setChosen(run)}
        >
          ${t('operator.cancel')}
        </button>`,
  ]);
  const done = () => {
    setCancelled(new Set([...cancelled, chosen?.name ?? '']));
    setChosen(null);
    refresh();
  };
  const columns = [
    t('operator.tenant'),
    t('operator.run'),
    t('operator.state'),
    t('operator.when'),
    t('operator.action'),
  ];
  return html`${error && html`<p class="form-error" role="alert">${error}</p>`}
  ${
    items &&
    html`<${Records}
      title=${t('operator.openRuns')}
      columns=${columns}
      rows=${rows}
      keys=${runs.map((run) => `${run.state} ${run.name}`)}
      empty=${t('operator.noOpenRuns')}
    >
      ${tenant && html`<p class="muted">${parts('operator.onlyOf', { tenant: html`<strong>${tenant}</strong>` })} <button type="button" class="link" onClick=${onAll}>${t('operator.ofAll')}</button></p>`}
    <//>`
  }
  ${next && html`<button type="button" class="button" onClick=${readMore}>${t('operator.moreRuns')}</button>`}
  ${chosen && html`<${Cancellation} run=${chosen} onDone=${done} onClose=${() => setChosen(null)} />`}`;
}

/**
 * The id of a run. It is a link only in the operator's own tenant, because operators may not read runs of other tenants.
 *
 * @param {{run: OpenRun}} properties
 */
function RunName({ run }) {
  const own = run.tenant === useStore().welcome.value?.tenant;
  const name = html`<code>${run.run_id}</code>`;
  return own ? html`<a href=${addressOf('runs', run.run_id)}>${name}</a>` : name;
}

/** @param {{run: OpenRun, onDone: () => void, onClose: () => void}} properties */
function Cancellation({ run, onDone, onClose }) {
  const store = useStore();
  const [reason, setReason] = useState('');
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const submit = (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    return store.api
      .cancelOpenRun(run.tenant, run.run_id, reason.trim())
      .then(onDone, (failure) => setError(explain(failure)));
  };
  return html`<${Dialog} title=${t('operator.cancelTitle')} onClose=${onClose}>
    <form class="dialog-body operator-dialog" onSubmit=${submit}>
      <p>
        ${parts('operator.cancelQuestion', { run: html`<code>${run.run_id}</code>`, tenant: html`<strong>${run.tenant}</strong>` })}
      </p>
      <label class="form-field"
        ><span>${t('operator.reason')}</span
        ><textarea
          required
          autofocus
          rows="2"
          maxlength="2000"
          value=${reason}
          onInput=${(event) => setReason(event.target.value)}
        />
      </label>
      ${error && html`<p class="form-error" role="alert">${error}</p>`}
      <div class="dialog-actions">
        <button type="button" class="button" onClick=${onClose}>${t('operator.keepRun')}</button>
        <button class="button danger" disabled=${!reason.trim()}>${t('operator.cancelTitle')}</button>
      </div>
    </form>
  <//>`;
}
