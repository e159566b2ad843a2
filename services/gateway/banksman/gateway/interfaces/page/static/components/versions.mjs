/** Versions of a message: edit and resend it, request another reply, and switch between versions. */

import { useLayoutEffect, useRef } from 'preact/hooks';

import { withText } from '../attachments.mjs';
import { t } from '../strings.mjs';
import { IconButton, SmallButton, html, useStore } from './ui.mjs';

/** Which version of a message is shown, with buttons for the others. @param {{place: import('../branches.mjs').Place}} properties */
export function VersionChoice({ place }) {
  const { opened } = useStore();
  const { parent, at, versions } = place;
  if (versions.length < 2) return null;
  const show = (/** @type {1 | -1} */ step) => opened.showVersion(parent, versions[at - 1 + step]);
  return html`<span class="versions" role="group" aria-label=${t('versions.label')}>
    <${IconButton}
      name="previous"
      size=${14}
      label=${t('versions.previous')}
      disabled=${at === 1}
      onClick=${() => show(-1)} />
    <span>${t('versions.at', { at, count: versions.length })}</span>
    <${IconButton}
      name="chevron"
      size=${14}
      label=${t('versions.next')}
      disabled=${at === versions.length}
      onClick=${() => show(1)} />
  </span>`;
}

/**
 * The form that replaces a message while the user edits it.
 *
 * @param {{run: Run, text: string, onWritten: (text: string | null) => void}} properties `onWritten` gets null at the end
 */
export function MessageEditor({ run, text, onWritten }) {
  const { outbox } = useStore();
  const onClose = () => onWritten(null);
  const area = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  // In the layout effect: another effect runs after the first paint, and would move the caret while the user types.
  useLayoutEffect(() => {
    area.current?.focus();
    area.current?.setSelectionRange(text.length, text.length);
  }, []);
  const send = (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    if (!text.trim()) return;
    outbox.sendVersion(run.id, withText(run.prompt?.content ?? '', text.trim()));
    onClose();
  };
  const onKeyDown = (/** @type {PageEvent} */ event) => {
    if (event.key === 'Escape') onClose();
    if (event.key === 'Enter' && (event.metaKey || event.ctrlKey)) send(event);
  };
  return html`<form class="message-editor" onSubmit=${send} onKeyDown=${onKeyDown}>
    <textarea
      ref=${area}
      rows="3"
      aria-label=${t('versions.edit')}
      value=${text}
      onInput=${(event) => onWritten(event.target.value)} />
    <p class="muted text-xs">${t('versions.editNote')}</p>
    <div class="dialog-actions">
      <${SmallButton} onClick=${onClose}>${t('app.cancel')}<//>
      <button class="button small primary" disabled=${!text.trim()}>${t('composer.send')}</button>
    </div>
  </form>`;
}

/** The actions for a message of the user. @param {{run: Run, place: import('../branches.mjs').Place, onEdit: () => void}} properties */
export function MessageTools({ run, place, onEdit }) {
  const { outbox, runs } = useStore();
  if (run.status === 'queued') {
    return html`<span class="message-tools">
      <${IconButton}
        name="pencil"
        size=${15}
        label=${t('versions.editQueued')}
        onClick=${() => outbox.editQueued(run)} />
      <${IconButton}
        name="trash"
        size=${15}
        label=${t('versions.removeQueued')}
        onClick=${() => runs.cancel(run.id)} />
    </span>`;
  }
  return html`<span class="message-tools">
    ${
      run.finished &&
      !run.compact &&
      html`<${IconButton} name="pencil" size=${15} label=${t('versions.edit')} onClick=${onEdit} />`
    }
    ${!run.finished && html`<${VersionChoice} place=${place} />`}
  </span>`;
}
