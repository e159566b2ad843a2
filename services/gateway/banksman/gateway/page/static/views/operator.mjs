/** The state of the system for operators: open runs, processes, queues, storage, tenants, and messages that were not handled. */

import { useEffect, useState } from 'preact/hooks';

import { DeadLetters } from '../components/operator/letters.mjs';
import { OpenRuns, useOpenRuns } from '../components/operator/open_runs.mjs';
import { NatsServers, Runners, Services } from '../components/operator/services.mjs';
import { Queues, Streams } from '../components/operator/storage.mjs';
import { Tenants, useTenants } from '../components/operator/tenants.mjs';
import { Icon, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { explain, t } from '../strings.mjs';

const REFRESH_MS = 5_000;

export default function OperatorView() {
  const store = useStore();
  const { overview, services, letters, error, read } = useOperations(store);
  const runs = useOpenRuns(store);
  const tenants = useTenants(store);
  const readAll = () => (read(), runs.read(), tenants.read());
  const actions = html`<button type="button" class="toggle" aria-label=${t('files.refresh')} onClick=${readAll}><${Icon} name="refresh" size=${16} /><span>${t('files.refresh')}</span></button>`;
  return html`<${Frame} title=${t('operator.title')} actions=${actions}>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${!overview && !error && html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`}
    ${letters && html`<${DeadLetters} page=${letters} onChange=${read} />`}
    <${OpenRuns} ...${runs} />
    ${services && html`<${Services} processes=${services.processes} />`}
    ${overview && html`<${Runners} runners=${overview.runners} /><${Queues} queues=${overview.queues} />`}
    ${services && html`<${NatsServers} nats=${services.nats} />`}
    ${overview && html`<${Streams} streams=${overview.streams} />`}
    ${tenants.error && html`<p class="form-error" role="alert">${tenants.error}</p>`}
    ${tenants.items && html`<${Tenants} ...${tenants} />`}
  <//>`;
}

/** The state, read again every five seconds while the page is visible. */
function useOperations(store) {
  const [state, setState] = useState({ overview: null, services: null, letters: null, error: null });
  const read = () =>
    Promise.all([store.api.operatorOverview(), store.api.services(), store.api.deadLetters()]).then(
      ([overview, services, letters]) => setState({ overview, services, letters, error: null }),
      (failure) => setState((before) => ({ ...before, error: explain(failure) })),
    );
  useEffect(() => {
    read();
    const timer = setInterval(() => !document.hidden && read(), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  return { ...state, read };
}
