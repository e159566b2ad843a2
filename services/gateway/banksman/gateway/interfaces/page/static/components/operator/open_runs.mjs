/** The open runs of all tenants or of one: their states, with a button to cancel each. */

import { useState } from 'preact/hooks';

import { addressOf } from '../../router.mjs';
import { parts, t } from '../../strings.mjs';
import { formatWhen } from '../../text.mjs';
import { FormDialog, TextField } from '../fields.mjs';
import { LinkButton, html, useStore } from '../ui.mjs';
import { usePages } from './pages.mjs';
import { PagedRecords } from './records.mjs';

const STATES = /** @type {const} */ (['awaiting_approval', 'awaiting_input', 'queued', 'queued_workflow']);
const REFRESH_MS = 5_000;
/** @type {Key[]} */
const COLUMNS = ['operator.tenant', 'run.title', 'operator.state', 'operator.when', 'operator.action'];
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
      return store.api.call('operator.runs', {
        state,
        after: after ?? undefined,
        tenant: tenant ?? undefined,
      });
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
/** @param {{pages: ReturnType<typeof useOpenRuns>, tenant: string | null, onAll: () => void}} properties */
export function OpenRuns({ pages, tenant, onAll }) {
  const [chosen, setChosen] = useState(/** @type {OpenRun | null} */ (null));
  const [cancelled, setCancelled] = useState(/** @type {Set<string>} */ (new Set()));
  const items =
    pages.items?.toSorted((one, other) => Date.parse(one.since) - Date.parse(other.since)) ?? null;
  const row = (/** @type {OpenRun} */ run) => [
    run.tenant,
    html`<${RunName} run=${run} />`,
    html`<span class=${run.state.startsWith('queued') ? 'status running' : 'status'}
      >${t(/** @type {Key} */ (`operator.run.${run.state}`))}</span
    >`,
    formatWhen(run.since),
    cancelled.has(run.name)
      ? html`<span class="status">${t('operator.cancelling')}</span>`
      : html`<${LinkButton}
          aria-label=${t('operator.cancelOf', { id: run.run_id })}
          onClick=${() => setChosen(run)}>
          ${t('timeline.stop')}
        <//>`,
  ];
  const done = () => {
    setCancelled(new Set([...cancelled, chosen?.name ?? '']));
    setChosen(null);
    pages.refresh();
  };
  return html`<${PagedRecords}
      pages=${{ ...pages, items }}
      title=${t('operator.openRuns')}
      columns=${COLUMNS}
      row=${row}
      keyOf=${(/** @type {OpenRun} */ run) => `${run.state} ${run.name}`}
      more=${t('operator.moreRuns')}
      empty=${t('operator.noOpenRuns')}>
      ${
        tenant &&
        html`<p class="muted">
          ${parts('operator.onlyOf', { tenant: html`<strong>${tenant}</strong>` })}
          <${LinkButton} onClick=${onAll}>${t('operator.ofAll')}<//>
        </p>`
      }
    <//>
    ${chosen && html`<${Cancellation} run=${chosen} onDone=${done} onClose=${() => setChosen(null)} />`}`;
}

/**
 * The id of a run. It is a link only in the operator's own tenant, because operators may not read runs of other tenants.
 *
 * @param {{run: OpenRun}} properties
 */
function RunName({ run }) {
  const own = run.tenant === useStore().session.welcome.value?.tenant;
  const name = html`<code>${run.run_id}</code>`;
  return own ? html`<a href=${addressOf('runs', run.run_id)}>${name}</a>` : name;
}

/** @param {{run: OpenRun, onDone: () => void, onClose: () => void}} properties */
function Cancellation({ run, onDone, onClose }) {
  const { api } = useStore();
  const [reason, setReason] = useState('');
  return html`<${FormDialog}
    title=${t('operator.cancelTitle')}
    label=${t('operator.cancelTitle')}
    cancel=${t('operator.keepRun')}
    danger
    disabled=${!reason.trim()}
    onSubmit=${() =>
      api
        .call('operator.cancel', { tenant: run.tenant, run_id: run.run_id }, { reason: reason.trim() })
        .then(onDone)}
    onClose=${onClose}>
    <p>
      ${parts('operator.cancelQuestion', {
        run: html`<code>${run.run_id}</code>`,
        tenant: html`<strong>${run.tenant}</strong>`,
      })}
    </p>
    <${TextField}
      label=${t('operator.reason')}
      value=${reason}
      onChange=${setReason}
      rows="2"
      required
      autofocus
      maxlength="2000" />
  <//>`;
}
