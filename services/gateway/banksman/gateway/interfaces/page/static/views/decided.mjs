/** The decided approval requests: who decided what, about which call, selected by text, decision, person, tool and time. */

import { useState } from 'preact/hooks';

import { coverageWords } from '../components/approval/scope.mjs';
import { Choice, Filters, TextField } from '../components/fields.mjs';
import { usePages } from '../components/operator/pages.mjs';
import { Records } from '../components/operator/records.mjs';
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
const DAYS = /** @type {const} */ ([1, 7, 30]);

export default function DecidedView() {
  const { api } = useStore();
  const [wanted, setWanted] = useState({ text: '', outcome: '', by: '', tool: '', since: '' });
  const { items, next, error, readMore } = usePages(
    (after) => api.call('decision.list', { ...wanted, limit: 50, after }),
    {
      of: wanted,
    },
  );
  const change = (/** @type {keyof typeof wanted} */ name) => (/** @type {string} */ value) =>
    setWanted({ ...wanted, [name]: value.trim() });
  const field = (/** @type {'text' | 'by' | 'tool'} */ name, type = 'text') =>
    html`<${TextField}
      label=${t(`decided.${name}`)}
      value=${wanted[name]}
      onChange=${change(name)}
      late
      type=${type}
      maxlength="200" />`;
  const choice = (
    /** @type {'outcome' | 'since'} */ name,
    /** @type {string} */ all,
    /** @type {string[][]} */ others,
  ) =>
    html`<${Choice}
      label=${t(`decided.${name}`)}
      value=${wanted[name]}
      onChange=${change(name)}
      options=${[['', all], ...others]} />`;
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
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${!items && !error && html`<${Loading} />`} ${items && html`<${Decisions} items=${items} />`}
    ${
      next !== null &&
      html`<button type="button" class="button" onClick=${readMore}>${t('decided.earlier')}</button>`
    }
  <//>`;
}

/** The beginning of today, or of an earlier day: the same text whenever it is drawn. @param {number} days with today */
function sinceDays(days) {
  const start = new Date();
  start.setHours(0, 0, 0, 0);
  start.setDate(start.getDate() - days + 1);
  return start.toISOString();
}

function Decisions(/** @type {{items: Decision[]}} */ { items }) {
  const rows = items.map((one) => [
    html`<time datetime=${one.at}>${formatMoment(one.at)}</time>`,
    html`<${Verdict} decision=${one} />`,
    html`<${Calls} decision=${one} />`,
    one.title
      ? html`<a href=${`#/c/${one.conversation_id}`}><${Exact} text=${one.title} /></a>`
      : html`<span class="muted">${t('decided.deleted')}</span>`,
  ]);
  return html`<${Records}
    title=${t('decided.list')}
    columns=${[t('decided.when'), t('decided.outcome'), t('decided.calls'), t('decided.conversation')]}
    rows=${rows}
    keys=${items.map((one) => one.id)}
    empty=${t('decided.none')} />`;
}

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
