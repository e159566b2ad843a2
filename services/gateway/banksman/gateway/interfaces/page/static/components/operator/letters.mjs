/** Messages that could not be handled: an operator reads, replays and discards them. */

import { useEffect, useState } from 'preact/hooks';

import { explain, parts, t } from '../../strings.mjs';
import { formatBytes, formatWhen } from '../../text.mjs';
import { CopyButton, Dialog, Exact, html, useStore } from '../ui.mjs';
import { usePages } from './pages.mjs';
import { Records } from './records.mjs';

const REFRESH_MS = 5_000;

export function useDeadLetters(/** @type {Store} */ store) {
  return usePages((after) => store.api.deadLetters(after ?? undefined), { everyMs: REFRESH_MS });
}

/** @param {ReturnType<typeof useDeadLetters>} properties */
export function DeadLetters({ items, next, error, readMore, refresh }) {
  const store = useStore();
  const [shown, setShown] = useState(/** @type {number | null} */ (null));
  // If further pages are shown, the list is not read again, so handled messages are marked in place.
  const [handled, setHandled] = useState(/** @type {Set<number>} */ (new Set()));
  const done = (/** @type {number} */ id) => (setHandled((before) => new Set([...before, id])), refresh());
  const replay = (/** @type {Letter} */ { id }) =>
    store.api.replayDeadLetter(id).then(
      () => done(id),
      (failure) => store.toast(explain(failure)),
    );
  const actions = (/** @type {Letter} */ letter) =>
    html`<span class="row-actions">
      <button
        type="button"
        class="link"
        aria-label=${t('operator.showOf', { id: String(letter.id) })}
        onClick=${() => setShown(letter.id)}
      >
        ${t('operator.show')}
      </button>
      ${letter.can_replay && html`<button type="button" class="link" aria-label=${t('operator.replayOf', { id: String(letter.id) })} onClick=${() => replay(letter)}>${t('operator.replay')}</button>`}
    </span>`;
  const rows = (items ?? []).map((letter) => [
    formatWhen(letter.ts),
    html`<code>${letter.subject}</code>`,
    html`<${Exact} text=${letter.reason} />`,
    handled.has(letter.id) ? html`<span class="status">${t('operator.handled')}</span>` : actions(letter),
  ]);
  const columns = [t('operator.when'), t('operator.subject'), t('operator.reason'), t('operator.action')];
  return html`${error && html`<p class="form-error" role="alert">${error}</p>`}
  ${items && html`<${Records} title=${t('operator.deadLetters')} columns=${columns} rows=${rows} keys=${items.map((letter) => letter.id)} empty=${t('operator.noDeadLetters')} />`}
  ${next && html`<button type="button" class="button" onClick=${readMore}>${t('operator.moreDeadLetters')}</button>`}
  ${shown && html`<${Letter} id=${shown} onDone=${() => (setShown(null), done(shown))} onClose=${() => setShown(null)} />`}`;
}

/**
 * One message with its content, of which the gateway returns the first 16 KiB.
 *
 * @param {{id: number, onDone: () => void, onClose: () => void}} properties
 */
function Letter({ id, onDone, onClose }) {
  const store = useStore();
  const [letter, setLetter] = useState(/** @type {Replies['dead_letter.read'] | null} */ (null));
  const [discarding, setDiscarding] = useState(false);
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const fail = (/** @type {Failure} */ failure) => setError(explain(failure));
  useEffect(() => void store.api.deadLetter(id).then(setLetter, fail), [id]);
  return html`<${Dialog} title=${t('operator.letterTitle', { id: String(id) })} onClose=${onClose} wide>
    <div class="dialog-body operator-dialog">
      ${!letter && !error && html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`}
      ${letter && html`<${Content} letter=${letter} />`}
      ${error && html`<p class="form-error" role="alert">${error}</p>`}
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
                onClick=${() => store.api.discardDeadLetter(id).then(onDone, fail)}
              >
                ${t('operator.discardNow')}
              </button>
            </div>`
          : html`<div class="dialog-actions">
              <button type="button" class="button" onClick=${() => setDiscarding(true)}>
                ${t('operator.discard')}
              </button>
              ${letter.can_replay && html`<button type="button" class="button primary" onClick=${() => store.api.replayDeadLetter(id).then(onDone, fail)}>${t('operator.replay')}</button>`}
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
    ${!letter.can_replay && html`<p class="notice info" role="note"><span>${parts('operator.replayByCommand', { command: html`<code>${`banksman dead replay ${letter.id}`}</code>` })}</span></p>`}
    ${headers && html`<${Field} label=${t('operator.headers')} text=${headers} />`}
    <${Field} label=${t('operator.content')} text=${readable(letter.payload)} />
    ${cut && html`<p class="muted">${t('operator.contentCut')}</p>`}`;
}

function Field(/** @type {{label: string, text: string}} */ { label, text }) {
  return html`<div class="field">
    <div class="field-head"><span>${label}</span><${CopyButton} text=${text} /></div>
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
