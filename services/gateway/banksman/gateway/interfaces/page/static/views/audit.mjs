/** The audit trail: who changed what of the tenant and when, selected by kind and user, and downloaded. */

import { useState } from 'preact/hooks';

import { usePages } from '../components/operator/pages.mjs';
import { Records } from '../components/operator/records.mjs';
import { saveBlob } from '../components/tools.mjs';
import { Exact, Icon, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { explain, known, t } from '../strings.mjs';
import { formatMoment } from '../text.mjs';

const KINDS = [
  'key',
  'user',
  'policy',
  'assistant',
  'prompt',
  'workflow',
  'schedule',
  'secret',
  'webhook',
  'mcp_server',
  'conversation',
  'run',
  'dead_letter',
  'tenant',
];

export default function AuditView() {
  const store = useStore();
  const [wanted, setWanted] = useState({ action: '', actor: '', tenant: '' });
  const { items, next, error, readMore } = usePages((after) => store.api.audit(wanted, after), {
    of: wanted,
  });
  const change = (name) => (event) => setWanted({ ...wanted, [name]: event.target.value.trim() });
  const operates = store.welcome.value?.rights?.includes('operator');
  const save = (format) => () =>
    store.api.auditExport(wanted, format).then(
      (blob) => saveBlob(blob, `audit.${format}`),
      (failure) => store.toast(explain(failure)),
    );
  const actions = ['csv', 'jsonl'].map(
    (format) =>
      html`<button
        type="button"
        class="toggle"
        aria-label=${t(`audit.save.${format}`)}
        onClick=${save(format)}
      >
        <${Icon} name="download" size=${16} /><span>${format.toUpperCase()}</span>
      </button>`,
  );
  return html`<${Frame} title=${t('audit.title')} actions=${actions}>
    <p class="muted">${t('audit.intro')}</p>
    <div class="trail-filter">
      <label class="form-field"
        ><span>${t('audit.kind')}</span>
        <select value=${wanted.action} onChange=${change('action')}>
          <option value="">${t('audit.everything')}</option>
          ${KINDS.map((kind) => html`<option value=${kind}>${t(`audit.kind.${kind}`)}</option>`)}
        </select>
      </label>
      <label class="form-field"
        ><span>${t('audit.actor')}</span
        ><input maxlength="200" value=${wanted.actor} onChange=${change('actor')}
      /></label>
      ${operates && html`<label class="form-field"><span>${t('audit.tenant')}</span><input maxlength="64" value=${wanted.tenant} placeholder=${t('audit.ownTenant')} onChange=${change('tenant')} /></label>`}
    </div>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${!items && !error && html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`}
    ${items && html`<${Entries} items=${items} tenants=${Boolean(wanted.tenant)} />`}
    ${next !== null && html`<button type="button" class="button" onClick=${readMore}>${t('audit.earlier')}</button>`}
  <//>`;
}

function Entries(/** @type {{items: ApprovalItem[], tenants: boolean}} */ { items, tenants }) {
  const rows = items.map((entry) => [
    html`<time datetime=${entry.ts}
      >${new Date(entry.ts).toLocaleString(document.documentElement.lang || undefined)}</time
    >`,
    ...(tenants ? [entry.tenant] : []),
    html`<strong><${Exact} text=${entry.actor} /></strong
      >${entry.actor_tenant && html` <span class="muted">${entry.actor_tenant}</span>`}`,
    known(`audit.action.${entry.action.replace('.', '_')}`, entry.action),
    html`<${Subject} entry=${entry} />`,
  ]);
  const columns = [
    t('audit.when'),
    ...(tenants ? [t('audit.tenant')] : []),
    t('audit.actor'),
    t('audit.what'),
    t('audit.target'),
  ];
  return html`<${Records}
    title=${t('audit.entries')}
    columns=${columns}
    rows=${rows}
    empty=${t('audit.none')}
  />`;
}

/**
 * The changed object: its id and details of the change. Names may come from users, so hidden characters are shown.
 *
 * @param {{entry: Entry}} properties
 */
function Subject({ entry }) {
  const details = Object.entries(entry.details).filter(
    ([, value]) => value !== null && value !== '' && !(Array.isArray(value) && !value.length),
  );
  return html`<code><${Exact} text=${entry.target} /></code>
    ${details.map(([name, value]) => html`<p class="reason">${known(`audit.detail.${name}`, name)}: <${Exact} text=${shown(name, value)} /></p>`)}`;
}

function shown(/** @type {string} */ name, /** @type {unknown} */ value) {
  if (name === 'rights') return value.map((right) => known(`right.${right}`, right)).join(', ');
  if (name === 'expires_at') return formatMoment(value);
  if (typeof value === 'boolean') return t(value ? 'app.yes' : 'app.no');
  return Array.isArray(value) ? value.join(', ') : String(value);
}
