/** The tenants with their usage, keys and limits. */

import { formatNumber, parts, t } from '../../strings.mjs';
import { formatBytes, formatCost } from '../../text.mjs';
import { LinkButton, html } from '../ui.mjs';
import { usePages } from './pages.mjs';
import { PagedRecords } from './records.mjs';

/** @type {Key[]} */
const COLUMNS = [
  'operator.tenant',
  'operator.openRuns',
  'sidebar.today',
  'settings.month',
  'sidebar.label',
  'operator.keys',
  'operator.limits',
];
/** Usage that reaches this share of its limit is marked. */
const NEARLY_FULL = 0.8;
/** Limits that are shown beside the usage that they bound, and not among the other limits. */
const CONSUMPTION = ['tokens_per_day', 'tokens_per_month', 'cost_usd_per_day', 'cost_usd_per_month'];

/**
 * The tenants, page by page. They are read again only on request, because a page takes hundreds of reads from the broker.
 *
 * @param {Store} store
 */
export function useTenants(store) {
  return usePages((/** @type {string | null} */ after) =>
    store.api.call('operator.tenants', { after: after ?? undefined }),
  );
}

/** @param {{pages: ReturnType<typeof useTenants>, onRuns: (tenant: string) => void}} properties `onRuns` shows the open runs of a tenant */
export function Tenants({ pages, onRuns }) {
  const row = (/** @type {Item<'operator.tenants'>} */ tenant) => [
    html`<strong>${tenant.tenant}</strong>`,
    html`<${Runs} tenant=${tenant.tenant} runs=${tenant.runs} onShow=${onRuns} />`,
    ...tenant.windows.map((window) => html`<${Consumed} window=${window} />`),
    formatBytes(tenant.stored_bytes),
    formatNumber(tenant.keys),
    Object.entries(tenant.limits)
      .filter(([name]) => !CONSUMPTION.includes(name))
      .map(([name, limit]) => html`<div><code>${name}</code> ${formatNumber(limit)}</div>`),
  ];
  return html`<${PagedRecords}
    pages=${pages}
    title=${t('operator.tenants')}
    columns=${COLUMNS}
    row=${row}
    more=${t('operator.moreTenants')}
    empty=${t('operator.noTenants')} />`;
}

/**
 * The number of open runs of a tenant, by state.
 *
 * @param {{tenant: string, runs: Item<'operator.tenants'>['runs'], onShow: (tenant: string) => void}} properties
 */
function Runs({ tenant, runs, onShow }) {
  const counted = /** @type {const} */ (['queued', 'queued_workflows', 'parked']).filter(
    (name) => runs[name],
  );
  if (!counted.length) return t('app.none');
  return html`${counted.map((name) => html`<div>${t(`operator.count.${name}`, { count: runs[name] })}</div>`)}
    <${LinkButton} aria-label=${t('operator.runsOf', { tenant })} onClick=${() => onShow(tenant)}>
      ${t('operator.show')}
    <//>`;
}

/**
 * The usage of a tenant in a day or month, each with its limit if there is one.
 *
 * @param {{window: Replies['usage']['windows'][number]}} properties
 */
function Consumed({ window }) {
  const tokens = window.input_tokens + window.output_tokens;
  return html`<div>
      ${parts('operator.tokens', {
        used: html`<${Used} used=${tokens} limit=${window.max_tokens} format=${formatNumber} />`,
      })}
    </div>
    <div><${Used} used=${window.cost_usd} limit=${window.max_cost_usd} format=${formatCost} /></div>`;
}

/** @param {{used: number, limit: number | null, format: (value: number) => string}} properties */
function Used({ used, limit, format }) {
  const text = limit ? t('operator.usedOf', { used: format(used), limit: format(limit) }) : format(used);
  return html`<span class=${limit && used > limit * NEARLY_FULL ? 'status failed' : ''}>${text}</span>`;
}
