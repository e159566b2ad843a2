/** One file: shown, or edited with highlighting. */

import { useEffect, useRef, useState } from 'preact/hooks';

import { explain, t } from '../../strings.mjs';
import { formatBytes } from '../../text.mjs';
import { Code, useColours } from '../content.mjs';
import { FormError, useAction, useKept } from '../requests.mjs';
import { Loading, SmallButton, html, useStore } from '../ui.mjs';

const MAX_PREVIEW_BYTES = 256 * 1024;
/** @typedef {{kind: 'loading'} | {kind: 'text' | 'note', text: string} | {kind: 'image', url: string}} Shown */

/** @type {Record<string, string>} */
const LANGUAGES = {
  py: 'python',
  js: 'javascript',
  mjs: 'javascript',
  ts: 'typescript',
  sh: 'bash',
  md: 'markdown',
  yml: 'yaml',
  rs: 'rust',
  htm: 'xml',
  html: 'xml',
  svg: 'xml',
  toml: 'ini',
};

function languageOf(/** @type {string} */ path) {
  const suffix = (path.split('.').at(-1) ?? '').toLowerCase();
  return LANGUAGES[suffix] ?? suffix;
}

export function OpenedFile(/** @type {{id: string, file: WorkspaceFile}} */ { id, file }) {
  const { api, workspace } = useStore();
  const [shown, setShown] = useState(/** @type {Shown} */ ({ kind: 'loading' }));
  const [written] = useKept(`file ${id} ${file.path}`);
  const [editing, setEditing] = useState(written !== null);
  const version = workspace.version.value;
  useEffect(() => {
    if (editing && shown.kind !== 'loading') return undefined;
    let current = true;
    preview(api, id, file).then(
      (result) => current && setShown(result),
      (error) => current && setShown({ kind: 'note', text: explain(error) }),
    );
    return () => (current = false);
  }, [file, version, editing]);
  useEffect(() => () => void (shown.kind === 'image' && URL.revokeObjectURL(shown.url)), [shown]);
  switch (shown.kind) {
    case 'text':
      return editing
        ? html`<${Editor} id=${id} file=${file} before=${shown.text} onClose=${() => setEditing(false)} />`
        : html`<div class="preview-body">
            <${SmallButton} onClick=${() => setEditing(true)}>${t('app.edit')}<//>
            <${Code} language=${languageOf(file.path)} source=${shown.text} label=${file.path} />
          </div>`;
    case 'image':
      return html`<div class="preview-body"><img src=${shown.url} alt=${file.path} /></div>`;
    case 'note':
      return html`<p class="empty">${shown.text}</p>`;
    default:
      return html`<${Loading} />`;
  }
}

/** @param {Api} api @param {string} id @param {WorkspaceFile} file @returns {Promise<Shown>} */
async function preview(api, id, file) {
  if (file.size > MAX_PREVIEW_BYTES)
    return { kind: 'note', text: t('files.tooLarge', { size: formatBytes(file.size) }) };
  const blob = await api.file(id, file.path);
  if (/\.(png|jpe?g|gif|webp)$/i.test(file.path)) return { kind: 'image', url: URL.createObjectURL(blob) };
  const text = await textOf(blob);
  return text === null ? { kind: 'note', text: t('files.notText') } : { kind: 'text', text };
}

async function textOf(/** @type {Blob} */ blob) {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(await blob.arrayBuffer());
  } catch {
    return null;
  }
}

/**
 * A text area gives LF. A file keeps its CRLF if all its lines have it.
 *
 * @param {string} text
 * @param {string} before
 */
function withLineEndsOf(before, text) {
  return /\r\n/.test(before) && !/(^|[^\r])\n/.test(before) ? text.replace(/\r?\n/g, '\r\n') : text;
}

/**
 * A text area over the highlighted text. A file that has changed meanwhile is overwritten only after confirmation.
 *
 * @param {{id: string, file: WorkspaceFile, before: string, onClose: () => void}} properties
 */
function Editor({ id, file, before: opened, onClose }) {
  const { api, toasts, workspace } = useStore();
  /** @type {ReturnType<typeof useKept<{before: string, text: string}>>} */
  const [written, setWritten] = useKept(`file ${id} ${file.path}`);
  const { before, text } = written ?? { before: opened, text: opened };
  const setText = (/** @type {string} */ next) => setWritten({ before, text: next });
  const close = () => (setWritten(null), onClose());
  const [changed, setChanged] = useState(false);
  const { busy, run } = useAction();
  const colours = useRef(/** @type {HTMLElement | null} */ (null));
  const language = languageOf(file.path);
  // An empty last line has no height in `pre`, but has one in the text area.
  const { markup } = useColours(language, `${text}\n`);
  const write = async () => {
    const stored = await textOf(await api.file(id, file.path));
    if (stored !== before && !changed) return setChanged(true);
    await api.upload(id, file.path, new Blob([withLineEndsOf(before, text)]));
    workspace.changed();
    return close();
  };
  const save = () => run(() => toasts.attempt(write));
  const onKeyDown = (/** @type {PageEvent} */ event) => {
    if (event.key !== 's' || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    if (!busy) save();
  };
  const onScroll = (/** @type {PageEvent} */ { target }) =>
    colours.current?.scrollTo(target.scrollLeft, target.scrollTop);
  return html`<div class="file-editor" onKeyDown=${onKeyDown}>
    <div class="file-editor-text">
      <pre ref=${colours} aria-hidden="true">
${
          markup === null
            ? html`<code>${text}${'\n'}</code>`
            : html`<code class="hljs" dangerouslySetInnerHTML=${{ __html: markup }} />`
        }</pre>
      <textarea
        aria-label=${t('files.editing', { path: file.path })}
        spellcheck=${false}
        wrap="off"
        value=${text}
        onScroll=${onScroll}
        onInput=${(event) => setText(event.target.value)} />
    </div>
    <${FormError} error=${changed && t('files.changedMeanwhile')} />
    <div class="dialog-actions">
      <${SmallButton} onClick=${close}>${t('app.cancel')}<//>
      <button type="button" class="button small primary" disabled=${busy || text === before} onClick=${save}>
        ${t(changed ? 'files.saveAnyway' : 'app.save')}
      </button>
    </div>
  </div>`;
}
