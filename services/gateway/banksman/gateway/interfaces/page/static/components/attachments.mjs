/** Files of a message: chips in the message box, images and names in the conversation. */

import { useEffect, useRef, useState } from 'preact/hooks';

import { imageFiles, isImage, writtenText } from '../attachments.mjs';
import { t } from '../strings.mjs';
import { cutLines, formatBytes, isImageData } from '../text.mjs';
import { useRead } from './requests.mjs';
import { Icon, IconButton, html, useStore } from './ui.mjs';

/**
 * Attach files that are dropped anywhere on the page. Without this, the browser shows such a file in place of the page.
 *
 * @param {(files: File[]) => void} onFiles
 * @returns {boolean} whether files are being dragged over the page
 */
export function useDroppedFiles(onFiles) {
  const [over, setOver] = useState(false);
  const latest = useRef(onFiles);
  latest.current = onFiles;
  useEffect(() => {
    // The panel of the workspace handles dropped files itself.
    const isOurs = (/** @type {DragEvent} */ event) =>
      !event.defaultPrevented && [...(event.dataTransfer?.items ?? [])].some(({ kind }) => kind === 'file');
    const onDragOver = (/** @type {DragEvent} */ event) => {
      setOver(isOurs(event));
      if (isOurs(event)) event.preventDefault();
    };
    const onDragLeave = (/** @type {DragEvent} */ event) => event.relatedTarget === null && setOver(false);
    const onDrop = (/** @type {DragEvent} */ event) => {
      setOver(false);
      if (!isOurs(event)) return;
      event.preventDefault();
      latest.current([...(event.dataTransfer?.files ?? [])]);
    };
    const ending = new AbortController();
    addEventListener('dragover', onDragOver, ending);
    addEventListener('dragleave', onDragLeave, ending);
    addEventListener('drop', onDrop, ending);
    return () => ending.abort();
  }, []);
  return over;
}

/**
 * The files that the next message has, each with a button that removes it.
 *
 * @param {{files: File[], onRemove?: (at: number) => void}} properties
 */
export function AttachedFiles({ files, onRemove }) {
  if (!files.length) return null;
  return html`<ul class="attached" aria-label=${t('attach.label')}>
    ${files.map(
      (file, at) =>
        html`<li key=${`${file.name}-${at}`} class="attached-file bar text-s">
          ${isImage(file) ? html`<${Thumbnail} file=${file} />` : html`<${Icon} name="file" size=${16} />`}
          <span class="attached-name">${file.name}</span><span class="muted">${formatBytes(file.size)}</span>
          ${
            onRemove &&
            html`<${IconButton}
              name="close"
              size=${14}
              label=${t('attach.remove', { name: file.name })}
              onClick=${() => onRemove(at)} />`
          }
        </li>`,
    )}
  </ul>`;
}

function Thumbnail(/** @type {{file: Blob, name?: string}} */ { file, name = '' }) {
  const [url, setUrl] = useState(/** @type {string | null} */ (null));
  useEffect(() => {
    const made = URL.createObjectURL(file);
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [file]);
  return url && html`<img src=${url} alt=${name} />`;
}

/** An image of the workspace; nothing if it is gone. @param {{path: string}} properties */
function StoredImage({ path }) {
  const { api, navigation } = useStore();
  const id = navigation.currentId.value;
  const { value: file } = useRead(id && (() => api.file(id, path)), [id, path]);
  return file && html`<${Thumbnail} file=${file} name=${path} />`;
}

/** A button that names a file, and opens the files. @param {Record<string, unknown>} properties */
export function FileChip({ class: name = '', ...rest }) {
  const { panel } = useStore().navigation;
  return html`<button
    type="button"
    class=${`chip ${name}`}
    onClick=${() => (panel.value = 'files')}
    ...${rest} />`;
}

/** The content of a message of the user: text, images and files. @param {{content: Content}} properties */
export function MessageContent({ content }) {
  if (typeof content === 'string') return html`<div class="bubble" dir="auto">${cutLines(content)}</div>`;
  const text = writtenText(content);
  const images = content
    .filter((part) => part.type === 'image')
    .filter((part) => isImageData(part.url ?? ''));
  const files = content.filter((part) => part.type === 'file');
  const stored = imageFiles(content);
  return html` ${
    stored.length > 0 &&
    html`<div class="message-images">
      ${stored.map((path) => html`<${StoredImage} key=${path} path=${path} />`)}
    </div>`
  }
  ${
    images.length > 0 &&
    html`<div class="message-images">
      ${images.map((part, at) => html`<img key=${at} src=${part.url} alt=${t('content.image')} />`)}
    </div>`
  }
  ${text && html`<div class="bubble" dir="auto">${cutLines(text)}</div>`}
  ${
    files.length > 0 &&
    html`<p class="changed wrap muted">
      ${files.map((part) => html`<${FileChip}><${Icon} name="file" size=${14} />${part.path}<//>`)}
    </p>`
  }`;
}
