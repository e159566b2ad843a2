/** The state of the system for operators: open runs, processes, queues, storage, tenants, and messages that were not handled. */

import { useEffect, useRef, useState } from 'preact/hooks';

import { DeadLetters, useDeadLetters } from '../components/operator/letters.mjs';
import { OpenRuns, useOpenRuns } from '../components/operator/open_runs.mjs';
import { NatsServers, Runners, Services } from '../components/operator/services.mjs';
import { Queues, Streams } from '../components/operator/storage.mjs';
import { Tenants, useTenants } from '../components/operator/tenants.mjs';
import { Reading, useRead } from '../components/requests.mjs';
import { Action, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { t } from '../strings.mjs';

const REFRESH_MS = 5_000;

export default function OperatorView() {
  const store = useStore();
  const [tenant, setTenant] = useState(/** @type {string | null} */ (null));
  const runsPart = useRef(/** @type {HTMLElement | null} */ (null));
  const state = useOperations(store);
  const [overview, services] = state.value ?? [];
  const letters = useDeadLetters(store);
  const runs = useOpenRuns(store, tenant);
  const tenants = useTenants(store);
  const readAll = () => [state.read, letters.read, runs.read, tenants.read].forEach((again) => again());
  const showRuns = (/** @type {string | null} */ chosen) => {
    setTenant(chosen);
    runsPart.current?.focus();
  };
  const actions = html`<${Action} icon="refresh" text=${t('files.refresh')} onClick=${readAll} />`;
  return html`<${Frame} title=${t('operator.title')} actions=${actions}>
    <${Reading} of=${state} />
    <${DeadLetters} pages=${letters} />
    <div class="operator stack" tabindex="-1" ref=${runsPart}>
      <${OpenRuns} pages=${runs} tenant=${tenant} onAll=${() => showRuns(null)} />
    </div>
    ${services && html`<${Services} processes=${services.processes} />`}
    ${
      overview &&
      html`<${Runners} runners=${overview.runners} />
        <${Queues} queues=${overview.queues} processes=${services?.processes ?? []} />`
    }
    ${services && html`<${NatsServers} nats=${services.nats} />`}
    ${overview && html`<${Streams} streams=${overview.streams} />`}
    <${Tenants} pages=${tenants} onRuns=${showRuns} />
  <//>`;
}

/** The state, read again every five seconds while the page is visible. @param {Store} store */
function useOperations(store) {
  const state = useRead(() =>
    Promise.all([store.api.call('operator.overview'), store.api.call('operator.services')]),
  );
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && state.read(), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  return state;
}
