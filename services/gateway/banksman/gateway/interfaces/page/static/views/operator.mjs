/** The state of the system for operators: open runs, processes, queues, storage, tenants, and messages that were not handled. */

import { useEffect, useRef, useState } from 'preact/hooks';

import { DeadLetters, useDeadLetters } from '../components/operator/letters.mjs';
import { OpenRuns, useOpenRuns } from '../components/operator/open_runs.mjs';
import { NatsServers, Runners, Services } from '../components/operator/services.mjs';
import { Queues, Streams } from '../components/operator/storage.mjs';
import { Tenants, useTenants } from '../components/operator/tenants.mjs';
import { Icon, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { explain, t } from '../strings.mjs';

const REFRESH_MS = 5_000;

/** @typedef {{overview: Replies['operator.overview'] | null, services: Replies['operator.services'] | null, error: string | null}} State */

export default function OperatorView() {
  const store = useStore();
  const [tenant, setTenant] = useState(/** @type {string | null} */ (null));
  const runsPart = useRef(/** @type {HTMLElement | null} */ (null));
  const { overview, services, error, read } = useOperations(store);
  const letters = useDeadLetters(store);
  const runs = useOpenRuns(store, tenant);
  const tenants = useTenants(store);
  const readAll = () => [read, letters.read, runs.read, tenants.read].forEach((again) => again());
  const showRuns = (/** @type {string | null} */ chosen) => {
    setTenant(chosen);
    runsPart.current?.focus();
  };
  const actions = html`<button
    type="button"
    class="toggle"
    aria-label=${t('files.refresh')}
    onClick=${readAll}
  >
    <${Icon} name="refresh" size=${16} /><span>${t('files.refresh')}</span>
  </button>`;
  return html`<${Frame} title=${t('operator.title')} actions=${actions}>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${!overview && !error && html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`}
    <${DeadLetters} ...${letters} />
    <div class="operator" tabindex="-1" ref=${runsPart}>
      <${OpenRuns} ...${runs} tenant=${tenant} onAll=${() => showRuns(null)} />
    </div>
    ${services && html`<${Services} processes=${services.processes} />`}
    ${overview && html`<${Runners} runners=${overview.runners} /><${Queues} queues=${overview.queues} />`}
    ${services && html`<${NatsServers} nats=${services.nats} />`}
    ${overview && html`<${Streams} streams=${overview.streams} />`}
    <${Tenants} ...${tenants} onRuns=${showRuns} />
  <//>`;
}

/** The state, read again every five seconds while the page is visible. @param {Store} store */
function useOperations(store) {
  const [state, setState] = useState(/** @type {State} */ ({ overview: null, services: null, error: null }));
  const read = () =>
    Promise.all([store.api.operatorOverview(), store.api.services()]).then(
      ([overview, services]) => setState({ overview, services, error: null }),
      (failure) => setState((before) => ({ ...before, error: explain(failure) })),
    );
  useEffect(() => {
    read();
    const timer = setInterval(() => !document.hidden && read(), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  return { ...state, read };
}
