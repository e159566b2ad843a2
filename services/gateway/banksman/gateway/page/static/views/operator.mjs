/** The state of the system for operators: tenants, runners, queues, storage, and messages that could not be handled. */

import { useEffect, useState } from 'preact/hooks';

import { Icon, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { explain, formatNumber, known, parts, t } from '../strings.mjs';
import { formatBytes, formatCost, formatWhen } from '../text.mjs';

const REFRESH_MS = 5_000;
/** Share of its limit from which a stream is marked. */
const NEARLY_FULL = 0.8;
/** Limits that are shown with what they bound, and not among the others. */
const CONSUMPTION = ['tokens_per_day', 'tokens_per_month', 'cost_usd_per_day', 'cost_usd_per_month'];

export default function OperatorView() {
  const store = useStore();
  const { overview, letters, error, read } = useOperations(store);
  const tenants = useTenants(store);
  const readAll = () => (read(), tenants.read());
  const actions = html`<button type="button" class="toggle" aria-label=${t('files.refresh')} onClick=${readAll}><${Icon} name="refresh" size=${16} /><span>${t('files.refresh')}</span></button>`;
  return html`<${Frame} title=${t('operator.title')} actions=${actions}>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${!overview && !error && html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`}
    ${letters && html`<${DeadLetters} page=${letters} onChange=${read} />`}
    ${overview && html`<${Runners} runners=${overview.runners} /><${Queues} queues=${overview.queues} /><${Streams} streams=${overview.streams} />`}
    ${tenants.error && html`<p class="form-error" role="alert">${tenants.error}</p>`}
    ${tenants.items && html`<${Tenants} ...${tenants} />`}
  <//>`;
}

/** The state, read again every five seconds while the page is visible. */
function useOperations(store) {
  const [state, setState] = useState({ overview: null, letters: null, error: null });
  const read = () =>
    Promise.all([store.api.operatorOverview(), store.api.deadLetters()]).then(
      ([overview, letters]) => setState({ overview, letters, error: null }),
      (failure) => setState((before) => ({ ...before, error: explain(failure) })),
    );
  useEffect(() => {
    read();
    const timer = setInterval(() => !document.hidden && read(), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  return { ...state, read };
}

/** The tenants, page by page. They are read again on request alone: a page takes a hundred reads of the broker. */
function useTenants(store) {
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

/** A table with a heading. @param {{title: string, columns: string[], rows: unknown[][], empty: string}} properties */
function Records({ title, columns, rows, empty }) {
  return html`<section class="operator">
    <h2>${title}</h2>
    ${rows.length
      ? html`<div class="table" tabindex="0" role="region" aria-label=${title}><table class="records">
          <thead><tr>${columns.map((column) => html`<th>${column}</th>`)}</tr></thead>
          <tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody>
        </table></div>`
      : html`<p class="muted">${empty}</p>`}
  </section>`;
}

function DeadLetters({ page, onChange }) {
  const store = useStore();
  const replay = (letter) => store.api.replayDeadLetter(letter.id).then(onChange, (failure) => store.toast(explain(failure)));
  const rows = page.items.map((letter) => [
    formatWhen(letter.ts),
    html`<code>${letter.subject}</code>`,
    letter.reason,
    letter.can_replay
      ? html`<button type="button" class="link" aria-label=${t('operator.replayOf', { id: String(letter.id) })} onClick=${() => replay(letter)}>${t('operator.replay')}</button>`
      : html`<code>${`banksman dead show ${letter.id}`}</code>`,
  ]);
  const columns = [t('operator.when'), t('operator.subject'), t('operator.reason'), t('operator.action')];
  return html`<${Records} title=${t('operator.deadLetters')} columns=${columns} rows=${rows} empty=${t('operator.noDeadLetters')} />
    ${page.next && html`<p class="muted">${t('operator.moreDeadLetters', { count: page.items.length })}</p>`}`;
}

function Runners({ runners }) {
  const rows = runners.map((runner) => [
    html`<strong>${runner.name}</strong>`,
    t(runner.workspaces ? 'operator.workspaces' : 'operator.toolServer'),
    formatNumber(runner.load),
    runner.serving ? html`<span class="status done">${t('operator.serving')}</span>` : html`<span class="status failed">${runner.problem ?? t('operator.notServing')}</span>`,
  ]);
  const columns = [t('operator.runner'), t('operator.kind'), t('operator.load'), t('operator.state')];
  return html`<${Records} title=${t('operator.runners')} columns=${columns} rows=${rows} empty=${t('operator.noRunners')} />`;
}

function Queues({ queues }) {
  const rows = queues.map((queue) => [
    known(`operator.queue.${queue.name.replace('-', '_')}`, queue.name),
    formatNumber(queue.waiting),
    formatNumber(queue.in_progress),
    formatNumber(queue.redelivered),
  ]);
  const columns = [t('operator.queue'), t('operator.waiting'), t('operator.inProgress'), t('operator.redelivered')];
  return html`<${Records} title=${t('operator.queues')} columns=${columns} rows=${rows} empty="" />`;
}

function Streams({ streams }) {
  const rows = streams.map((stream) => {
    const share = stream.max_bytes > 0 ? stream.bytes / stream.max_bytes : 0;
    const used = stream.max_bytes > 0 ? t('operator.usedOf', { used: formatBytes(stream.bytes), limit: formatBytes(stream.max_bytes) }) : formatBytes(stream.bytes);
    return [html`<code>${stream.name}</code>`, formatNumber(stream.messages), html`<span class=${share > NEARLY_FULL ? 'status failed' : ''}>${used}</span>`];
  });
  const columns = [t('operator.stream'), t('operator.messages'), t('operator.size')];
  return html`<${Records} title=${t('operator.streams')} columns=${columns} rows=${rows} empty="" />`;
}

function Tenants({ items, next, read }) {
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
