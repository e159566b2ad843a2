/** The processes of the system: whether each is ready, the reason if it is not, and its work. */

import { formatNumber, known, reasonOf, t } from '../../strings.mjs';
import { formatBytes, formatWhen } from '../../text.mjs';
import { html } from '../ui.mjs';
import { Records } from './records.mjs';

/** @type {Record<string, Key[]>} */
const COLUMNS = {
  services: ['operator.service', 'operator.process', 'operator.serves', 'operator.version', 'operator.state'],
  servers: ['operator.server', 'operator.role', 'operator.lag', 'operator.state'],
  runners: ['app.name', 'operator.serves', 'operator.load', 'operator.version', 'operator.state'],
};

/**
 * Gateways, agents and workflows services, as they reported themselves.
 *
 * @param {{processes: Replies['operator.services']['processes']}} properties
 */
export function Services({ processes }) {
  const rows = processes.map((process) => [
    html`<strong>${known(`operator.service.${process.service}`, process.service)}</strong>`,
    html`<code>${`${process.host}:${process.pid}`}</code>`,
    process.places
      ? t('operator.usedOf', { used: formatNumber(process.used), limit: formatNumber(process.places) })
      : formatNumber(process.used),
    html`<${Begun} process=${process} />`,
    html`<${Readiness} process=${process} />`,
  ]);
  return html`<${Records}
    title=${t('operator.services')}
    columns=${COLUMNS.services}
    rows=${rows}
    empty="" />`;
}

function Readiness(/** @type {{process: Replies['operator.services']['processes'][number]}} */ { process }) {
  if (!process.responds)
    return html`<span class="status failed"
      >${t('operator.silent', { when: formatWhen(process.reported_at) })}</span
    >`;
  const reasons = Object.entries({ ...process.problems, ...process.warnings }).map(([check, problem]) =>
    reasonOf(`operator.check.${check}`, problem),
  );
  return html`<span class=${process.ready ? 'status done' : 'status failed'}
      >${t(process.ready ? 'operator.serving' : 'operator.notServing')}</span
    >
    ${reasons.map((reason) => html`<p class="reason">${reason}</p>`)}`;
}

/** The version of a process, and the time of its start. @param {{process: Replies['operator.services']['processes'][number]}} properties */
function Begun({ process }) {
  return html`${`${process.version ?? ''} `}
  ${
    process.started_at &&
    html`<span class="muted">${t('operator.since', { when: formatWhen(process.started_at) })}</span>`
  }`;
}

/** The NATS servers and their storage. @param {{nats: Replies['operator.services']['nats']}} properties */
export function NatsServers({ nats }) {
  const rows = nats.servers.map((server) => [
    html`<strong>${server.name}</strong>`,
    t(server.leads ? 'operator.leads' : 'operator.follows'),
    formatNumber(server.lag),
    html`<span class=${server.reachable ? 'status done' : 'status failed'}
      >${t(server.reachable ? 'operator.reachable' : 'operator.unreachable')}</span
    >`,
  ]);
  const used =
    nats.max_bytes &&
    t('operator.natsStorage', {
      used: formatBytes(nats.used_bytes ?? 0),
      limit: formatBytes(nats.max_bytes ?? 0),
    });
  return html`<${Records}
      title=${t('operator.nats', { version: nats.version })}
      columns=${COLUMNS.servers}
      rows=${rows}
      empty="" />
    ${
      (nats.problem || used) &&
      html`<p class="muted">${nats.problem ? reasonOf('operator.check.nats', nats.problem) : used}</p>`
    }`;
}

export function Runners(/** @type {{runners: Replies['operator.overview']['runners']}} */ { runners }) {
  const rows = runners.map((runner) => [
    html`<strong>${runner.name}</strong>`,
    t(runner.workspaces ? 'operator.workspaces' : 'operator.toolServer'),
    runner.places
      ? t('operator.usedOf', { used: formatNumber(runner.load), limit: formatNumber(runner.places) })
      : formatNumber(runner.load),
    html`<${Begun} process=${runner} />`,
    runner.serving
      ? html`<span class="status done">${t('operator.serving')}</span>${
            runner.warning &&
            html`<p class="reason">${reasonOf('operator.check.workspaces', runner.warning)}</p>`
          }`
      : html`<span class="status failed"
          >${runner.problem ? problemOf(runner) : t('operator.notServing')}</span
        >`,
  ]);
  return html`<${Records}
    title=${t('operator.runners')}
    columns=${COLUMNS.runners}
    rows=${rows}
    empty=${t('operator.noRunners')} />`;
}

/**
 * Why a runner accepts no calls: it is shutting down, or its sandbox does not isolate calls.
 *
 * @param {{problem: string | null}} options
 */
function problemOf({ problem }) {
  return problem === 'draining' ? t('operator.check.draining') : reasonOf('operator.check.sandbox', problem);
}
