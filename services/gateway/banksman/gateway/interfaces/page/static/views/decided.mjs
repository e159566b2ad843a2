/** The decided approval requests: who decided what, about which call, selected by text, decision, person, tool and time. */

import { useState } from 'preact/hooks';

import { coverageWords } from '../components/approval/scope.mjs';
import { Choice, Filters, TextField, bound } from '../components/fields.mjs';
import { usePages } from '../components/operator/pages.mjs';
import { PagedRecords } from '../components/operator/records.mjs';
import { Exact, Loading, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { t } from '../strings.mjs';
import { formatMoment } from '../text.mjs';

/** @typedef {import('../client/replies.d.ts').Replies['decision.list']['items'][number]} Decision */

const OUTCOMES = /** @type {const} */ ([
  'approved',
  'rejected',
  'mixed',
  'expired',
  'cancelled',
  'superseded',
]);
/** @type {Key[]} */
const COLUMNS = ['decided.when', 'decided.outcome', 'decided.calls', 'decided.conversation'];
const DAYS = /** @type {const} */ ([1, 7, 30]);

export default function DecidedView() {
  const { api } = useStore();
  const [wanted, setWanted] = useState({ text: '', outcome: '', by: '', tool: '', since: '' });
  const pages = usePages((after) => api.call('decision.list', { ...wanted, limit: 50, after }), {
    of: wanted,
  });
  const of = bound(wanted, (fields) => setWanted({ ...wanted, ...fields }));
  const field = (/** @type {'text' | 'by' | 'tool'} */ name, type = 'text') =>
    html`<${TextField} label=${t(`decided.${name}`)} ...${of(name)} late type=${type} maxlength="200" />`;
  const choice = (
    /** @type {'outcome' | 'since'} */ name,
    /** @type {string} */ all,
    /** @type {string[][]} */ others,
  ) => html`<${Choice} label=${t(`decided.${name}`)} ...${of(name)} options=${[['', all], ...others]} />`;
  return html`<${Frame} title=${t('decided.title')}>
    <${Filters} values=${wanted}>
      ${field('text', 'search')}
      ${choice(
        'outcome',
        t('decided.every'),
        OUTCOMES.map((outcome) => [outcome, t(`approval.outcome.${outcome}`)]),
      )}
      ${field('by')} ${field('tool')}
      ${choice(
        'since',
        t('decided.always'),
        DAYS.map((days) => [sinceDays(days), t('decided.days', { count: days })]),
      )}
    <//>
    ${!pages.items && !pages.error && html`<${Loading} />`}
    <${PagedRecords}
      pages=${pages}
      title=${t('decided.list')}
      columns=${COLUMNS}
      row=${cellsOf}
      keyOf=${(/** @type {Decision} */ one) => one.id}
      more=${t('decided.earlier')}
      empty=${t('decided.none')} />
  <//>`;
}

/** The beginning of today, or of an earlier day: the same text whenever it is drawn. @param {number} days with today */
function sinceDays(days) {
  const start = new Date();
  start.setHours(0, 0, 0, 0);
  start.setDate(start.getDate() - days + 1);
  return start.toISOString();
}

const cellsOf = (/** @type {Decision} */ one) => [
  html`<time datetime=${one.at}>${formatMoment(one.at)}</time>`,
  html`<${Verdict} decision=${one} />`,
  html`<${Calls} decision=${one} />`,
  one.title
    ? html`<a href=${`#/c/${one.conversation_id}`}><${Exact} text=${one.title} /></a>`
    : html`<span class="muted">${t('decided.deleted')}</span>`,
];

/** @param {{decision: Decision}} properties */
function Verdict({ decision: { outcome, by, first_by: first, remember, interface: over } }) {
  const more = [
    first && t('decided.first', { user: first }),
    over !== 'system' && t('decided.over', { name: t(`decided.over.${over}`) }),
    remember && t(`decided.remembered.${remember}`),
  ];
  return html`<strong>${t(`approval.outcome.${outcome}`)}</strong
    >${by !== 'system' && ` ${t('approval.by', { user: by })}`}
    <p class="reason">${more.filter(Boolean).join(' ')}</p>`;
}

/** @param {{decision: Decision}} properties */
function Calls({ decision: { calls, more } }) {
  return html`<ul class="decided-calls stack anywhere">
    ${calls.map(
      ({ tool, call, decision, covers, begins }) =>
        html`<li>
          <strong>${tool}</strong> <code><${Exact} text=${call} /></code>
          ${
            decision &&
            decision !== 'approved' &&
            html`${' '}<span class="badge">${t(`decided.call.${decision}`)}</span>`
          }
          ${
            covers &&
            html`<${Covered}
              call=${{ name: tool, covers, begins, arguments: { path: call, url: call } }}
              edited=${decision === 'edited'} />`
          }
        </li>`,
    )}
    ${more > 0 && html`<li class="muted">${t('decided.more', { count: more })}</li>`}
  </ul>`;
}

/** @param {{call: {name: string, covers: {by: string, words: string}, begins: string | null, arguments: Json}, edited: boolean}} properties */
function Covered({ call, edited }) {
  // The list has the requested arguments alone.
  const what = edited && call.covers.by !== 'tool' ? t('decided.coversEdited') : coverageWords(call);
  return html`<p class="reason"><${Exact} text=${t('decided.covers', { what })} /></p>`;
}
