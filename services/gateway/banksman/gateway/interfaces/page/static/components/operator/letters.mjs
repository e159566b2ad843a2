/** Messages that could not be handled: an operator reads, replays and discards them. */

import { useState } from 'preact/hooks';

import { parts, t } from '../../strings.mjs';
import { formatBytes, formatWhen } from '../../text.mjs';
import { FormError, Reading, useAction, useRead } from '../requests.mjs';
import { CopyButton, Dialog, Exact, LinkButton, html, useStore } from '../ui.mjs';
import { usePages } from './pages.mjs';
import { PagedRecords } from './records.mjs';

const REFRESH_MS = 5_000;
/** @type {Key[]} */
const COLUMNS = ['operator.when', 'operator.subject', 'operator.reason', 'operator.action'];

export function useDeadLetters(/** @type {Store} */ store) {
  return usePages((after) => store.api.call('dead_letter.list', { limit: 50, after: after ?? undefined }), {
    everyMs: REFRESH_MS,
  });
}

/** @param {{pages: ReturnType<typeof useDeadLetters>}} properties */
export function DeadLetters({ pages }) {
  const { api, toasts } = useStore();
  const [shown, setShown] = useState(/** @type {number | null} */ (null));
  // If further pages are shown, the list is not read again, so handled messages are marked in place.
  const [handled, setHandled] = useState(/** @type {Set<number>} */ (new Set()));
  const done = (/** @type {number} */ id) => (
    setHandled((before) => new Set([...before, id])),
    pages.refresh()
  );
  const replay = (/** @type {Letter} */ { id }) =>
    toasts.attempt(() => api.call('dead_letter.replay', { letter_id: id }).then(() => done(id)));
  const actions = (/** @type {Letter} */ letter) =>
    html`<span class="row-actions">
      <${LinkButton}
        aria-label=${t('operator.showOf', { id: String(letter.id) })}
        onClick=${() => setShown(letter.id)}>
        ${t('operator.show')}
      <//>
      ${
        letter.can_replay &&
        html`<${LinkButton}
          aria-label=${t('operator.replayOf', { id: String(letter.id) })}
          onClick=${() => replay(letter)}>
          ${t('operator.replay')}
        <//>`
      }
    </span>`;
  const row = (/** @type {Letter} */ letter) => [
    formatWhen(letter.ts),
    html`<code>${letter.subject}</code>`,
    html`<${Exact} text=${letter.reason} />`,
    handled.has(letter.id) ? html`<span class="status">${t('operator.handled')}</span>` : actions(letter),
  ];
  return html`<${PagedRecords}
      pages=${pages}
      title=${t('operator.deadLetters')}
      columns=${COLUMNS}
      row=${row}
      keyOf=${(/** @type {Letter} */ letter) => letter.id}
      more=${t('operator.moreDeadLetters')}
      empty=${t('operator.noDeadLetters')} />
    ${
      shown &&
      html`<${Letter}
        id=${shown}
        onDone=${() => (setShown(null), done(shown))}
        onClose=${() => setShown(null)} />`
    }`;
}

/**
 * One message with its content, of which the gateway returns the first 16 KiB.
 *
 * @param {{id: number, onDone: () => void, onClose: () => void}} properties
 */
function Letter({ id, onDone, onClose }) {
  const { api } = useStore();
  const read = useRead(() => api.call('dead_letter.read', { letter_id: id }), [id]);
  const letter = read.value;
  const [discarding, setDiscarding] = useState(false);
  const { busy, error, run } = useAction();
  return html`<${Dialog} title=${t('operator.letterTitle', { id: String(id) })} onClose=${onClose} wide>
    <div class="dialog-body operator-dialog stack">
      <${Reading} of=${read} />
      ${letter && html`<${Content} letter=${letter} />`}
      <${FormError} error=${error} />
      ${discarding && html`<p role="alert">${t('operator.discardQuestion')}</p>`}
      ${
        letter &&
        (discarding
          ? html`<div class="dialog-actions">
              <button type="button" class="button" onClick=${() => setDiscarding(false)}>
                ${t('app.cancel')}
              </button>
              <button
                type="button"
                class="button danger"
                disabled=${busy}
                onClick=${() => run(() => api.call('dead_letter.discard', { letter_id: id }).then(onDone))}>
                ${t('operator.discardNow')}
              </button>
            </div>`
          : html`<div class="dialog-actions">
              <button type="button" class="button" onClick=${() => setDiscarding(true)}>
                ${t('app.discard')}
              </button>
              ${
                letter.can_replay &&
                html`<button
                  type="button"
                  class="button primary"
                  disabled=${busy}
                  onClick=${() => run(() => api.call('dead_letter.replay', { letter_id: id }).then(onDone))}>
                  ${t('operator.replay')}
                </button>`
              }
            </div>`)
      }
    </div>
  <//>`;
}

function Content(/** @type {{letter: Replies['dead_letter.read']}} */ { letter }) {
  const headers = Object.entries(letter.headers)
    .map(([name, value]) => `${name}: ${value}`)
    .join('\n');
  const cut = letter.payload_bytes > new TextEncoder().encode(letter.payload).length;
  return html`<p><${Exact} text=${letter.reason} /></p>
    <p class="muted">
      <code>${letter.subject}</code> · ${formatWhen(letter.ts)} · ${formatBytes(letter.payload_bytes)}
    </p>
    ${
      !letter.can_replay &&
      html`<p class="notice info" role="note">
        <span
          >${parts('operator.replayByCommand', {
            command: html`<code>${`banksman dead replay ${letter.id}`}</code>`,
          })}</span
        >
      </p>`
    }
    ${headers && html`<${Field} label=${t('operator.headers')} text=${headers} />`}
    <${Field} label=${t('operator.content')} text=${readable(letter.payload)} />
    ${cut && html`<p class="muted">${t('operator.contentCut')}</p>`}`;
}

function Field(/** @type {{label: string, text: string}} */ { label, text }) {
  return html`<div class="field">
    <div class="field-head muted text-xs"><span>${label}</span><${CopyButton} text=${text} /></div>
    <pre tabindex="0" aria-label=${label} role="group"><${Exact} text=${text} /></pre>
  </div>`;
}

/**
 * JSON with line breaks and indentation. Other text, and truncated JSON, is returned unchanged.
 *
 * @param {string} payload
 */
function readable(payload) {
  try {
    return JSON.stringify(JSON.parse(payload), null, 2);
  } catch {
    return payload;
  }
}
