/** The audit trail: who changed what of the tenant and when, selected by kind and user, and downloaded. */

import { useState } from 'preact/hooks';

import { usePages } from '../components/operator/pages.mjs';
import { Choice, Filters, TextField, bound } from '../components/fields.mjs';
import { PagedRecords } from '../components/operator/records.mjs';
import { saveBlob } from '../components/tools.mjs';
import { Action, Exact, Loading, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { known, t } from '../strings.mjs';
import { formatMoment } from '../text.mjs';

/** @typedef {Item<'audit.list'>} Entry */

const KINDS = /** @type {const} */ ([
  'key',
  'user',
  'policy',
  'approval',
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
]);

export default function AuditView() {
  const { api, session, toasts } = useStore();
  const [wanted, setWanted] = useState({ action: '', actor: '', tenant: '' });
  const pages = usePages(
    (/** @type {number | null} */ after) =>
      api.call('audit.list', { ...wanted, limit: 50, after: after ?? undefined }),
    { of: wanted },
  );
  const of = bound(wanted, (fields) => setWanted({ ...wanted, ...fields }));
  const operates = session.welcome.value?.rights?.includes('operator');
  const save = (/** @type {'csv' | 'jsonl'} */ format) => () =>
    toasts.attempt(async () =>
      saveBlob(await api.blob('audit.export', { ...wanted, format }), `audit.${format}`),
    );
  const actions = /** @type {const} */ (['csv', 'jsonl']).map(
    (format) =>
      html`<${Action}
        icon="download"
        text=${format.toUpperCase()}
        class="toggle named"
        aria-label=${t(`audit.save.${format}`)}
        onClick=${save(format)} />`,
  );
  return html`<${Frame} title=${t('audit.title')} actions=${actions}>
    <p class="muted">${t('audit.intro')}</p>
    <${Filters} values=${wanted}>
      <${Choice}
        label=${t('audit.kind')}
        ...${of('action')}
        options=${[['', t('audit.everything')], ...KINDS.map((kind) => [kind, t(`audit.kind.${kind}`)])]} />
      <${TextField} label=${t('audit.actor')} ...${of('actor')} late maxlength="200" />
      ${
        operates &&
        html`<${TextField}
          label=${t('audit.tenant')}
          ...${of('tenant')}
          late
          maxlength="64"
          placeholder=${t('audit.ownTenant')} />`
      }
    <//>
    ${!pages.items && !pages.error && html`<${Loading} />`}
    <${Entries} pages=${pages} tenants=${Boolean(wanted.tenant)} />
  <//>`;
}

/** @param {{pages: import('../components/operator/pages.mjs').Pages<Entry>, tenants: boolean}} properties */
function Entries({ pages, tenants }) {
  const row = (/** @type {Entry} */ entry) => [
    html`<time datetime=${entry.ts}
      >${new Date(entry.ts).toLocaleString(document.documentElement.lang || undefined)}</time
    >`,
    ...(tenants ? [entry.tenant] : []),
    html`<strong><${Exact} text=${entry.actor} /></strong
      >${entry.actor_tenant && html` <span class="muted">${entry.actor_tenant}</span>`}`,
    known(`audit.action.${entry.action.replace('.', '_')}`, entry.action),
    html`<${Subject} entry=${entry} />`,
  ];
  return html`<${PagedRecords}
    pages=${pages}
    title=${t('audit.entries')}
    columns=${[
      'audit.when',
      ...(tenants ? ['audit.tenant'] : []),
      'audit.actor',
      'operator.action',
      'audit.target',
    ]}
    row=${row}
    more=${t('audit.earlier')}
    empty=${t('audit.none')} />`;
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
  return html`<code><${Exact} text=${entry.target} /></code> ${details.map(
      ([name, value]) =>
        html`<p class="reason">
          ${known(`audit.detail.${name}`, name)}: <${Exact} text=${shown(name, value)} />
        </p>`,
    )}`;
}

function shown(/** @type {string} */ name, /** @type {unknown} */ value) {
  if (name === 'rights' && Array.isArray(value))
    return value.map((right) => known(`right.${right}`, right)).join(', ');
  if (name === 'expires_at') return formatMoment(String(value));
  if (typeof value === 'boolean') return t(value ? 'app.yes' : 'app.no');
  return Array.isArray(value) ? value.join(', ') : String(value);
}
