/** The tenants with their usage, keys and limits. */

import { useEffect, useState } from 'preact/hooks';

import { explain, formatNumber, parts, t } from '../../strings.mjs';
import { formatBytes, formatCost } from '../../text.mjs';
import { html } from '../ui.mjs';
import { Records } from './records.mjs';

/** Share of its limit from which a consumption is marked. */
const NEARLY_FULL = 0.8;
/** Limits that are shown with what they bound, and not among the others. */
const CONSUMPTION = ['tokens_per_day', 'tokens_per_month', 'cost_usd_per_day', 'cost_usd_per_month'];

/** The tenants, page by page. They are read again on request alone: a page takes a hundred reads of the broker. */
export function useTenants(store) {
  const [state, setState] = useState({ items: null, next: null, error: null });
  const read = (after) =>
    store.api.tenants(after).then(
      (page) => setState((before) => joined(before, page, after)),
      (failure) => setState((before) => ({ ...before, error: explain(failure) })),
    );
  useEffect(() => void read(), []);
  return { ...state, read };
}

function joined(before, page, after) {
  if (!after) return { items: page.items, next: page.next, error: null };
  // The list was read from its beginning in the meantime: this page may not follow it.
  if (before.next !== after) return before;
  return { items: [...before.items, ...page.items], next: page.next, error: null };
}

export function Tenants({ items, next, read }) {
  const rows = items.map((tenant) => [
    html`<strong>${tenant.tenant}</strong>`,
    ...tenant.windows.map((window) => html`<${Consumed} window=${window} />`),
    formatBytes(tenant.stored_bytes),
    formatNumber(tenant.keys),
    Object.entries(tenant.limits)
      .filter(([name]) => !CONSUMPTION.includes(name))
      .map(([name, limit]) => html`<div><code>${name}</code> ${formatNumber(limit)}</div>`),
  ]);
  const columns = [t('operator.tenant'), t('operator.today'), t('operator.month'), t('operator.conversations'), t('operator.keys'), t('operator.limits')];
  return html`<${Records} title=${t('operator.tenants')} columns=${columns} rows=${rows} empty=${t('operator.noTenants')} />
    ${next && html`<button type="button" class="button" onClick=${() => read(next)}>${t('operator.moreTenants')}</button>`}`;
}

/** What a tenant consumed in a day or month, each with its limit if it has one. */
function Consumed({ window }) {
  const tokens = window.input_tokens + window.output_tokens;
  return html`<div>${parts('operator.tokens', { used: html`<${Used} used=${tokens} limit=${window.max_tokens} format=${formatNumber} />` })}</div>
    <div><${Used} used=${window.cost_usd} limit=${window.max_cost_usd} format=${formatCost} /></div>`;
}

function Used({ used, limit, format }) {
  const text = limit ? t('operator.usedOf', { used: format(used), limit: format(limit) }) : format(used);
  return html`<span class=${limit && used > limit * NEARLY_FULL ? 'status failed' : ''}>${text}</span>`;
}
