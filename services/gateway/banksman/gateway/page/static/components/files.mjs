/** The workspace of the open conversation: list, preview, download, upload, delete. */

import { useEffect, useRef, useState } from 'preact/hooks';

import { explain, t } from '../strings.mjs';
import { formatBytes, formatWhen } from '../text.mjs';
import { Code } from './content.mjs';
import { saveBlob } from './tools.mjs';
import { Icon, IconButton, Menu, html, useStore } from './ui.mjs';

const MAX_PREVIEW_BYTES = 256 * 1024;

export function FilePanel() {
  const store = useStore();
  const id = store.currentId.value;
  const [items, setItems] = useState(null);
  const [error, setError] = useState(null);
  const [opened, setOpened] = useState(null);
  const [busy, setBusy] = useState(false);
  const picker = useRef(null);
  const panel = useRef(null);
  const version = store.filesVersion.value;
  const read = () =>
    store.api.files(id).then(
      (page) => (setItems(page.items), setError(null)),
      (failure) => setError(explain(failure)),
    );
  useEffect(() => void read(), [version]);
  useEffect(() => panel.current.focus(), []);
  const upload = async (files) => {
    setBusy(true);
    try {
      for (const file of files) await store.api.upload(id, file.name, file);
    } catch (failure) {
      store.toast(explain(failure));
    }
    setBusy(false);
    await read();
  };
  const remove = async (path) => {
    try {
      await store.api.deleteFile(id, path);
    } catch (failure) {
      store.toast(explain(failure));
    }
    await read();
  };
  const drop = (event) => {
    event.preventDefault();
    upload(event.dataTransfer.files);
  };
  const close = () => (store.panel.value = null);
  return html`<aside
    class="panel"
    aria-label=${t('files.label')}
    tabindex="-1"
    ref=${panel}
    onDragOver=${(event) => event.preventDefault()}
    onDrop=${drop}
    onKeyDown=${(event) => event.key === 'Escape' && (opened ? setOpened(null) : close())}
  >
    <header class="panel-head">
      ${opened && html`<${IconButton} name="back" label=${t('files.all')} onClick=${() => setOpened(null)} />`}
      <h2>${opened ? opened.path.split('/').at(-1) : t('files.label')}</h2>
      ${!opened && html`<${IconButton} name="refresh" label=${t('files.refresh')} onClick=${read} /><${IconButton} name="upload" label=${t('files.upload')} disabled=${busy} onClick=${() => picker.current.click()} />`}
      ${opened && html`<${IconButton} name="download" label=${t('files.download')} onClick=${() => download(store, id, opened.path)} />`}
      <${IconButton} name="close" label=${t('files.close')} onClick=${close} />
      <input ref=${picker} type="file" multiple hidden onChange=${(event) => upload([...event.target.files]).then(() => (event.target.value = ''))} />
    </header>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${opened
      ? html`<${Preview} id=${id} file=${opened} />`
      : html`<ul class="files">
          ${items?.map(
            (file) => html`<li key=${file.path}>
              <button type="button" class="file" onClick=${() => setOpened(file)}>
                <${Icon} name="file" size=${16} />
                <span class="file-path"><${Path} path=${file.path} /></span>
                <span class="file-meta">${formatBytes(file.size)} · ${formatWhen(file.modified_at)}</span>
              </button>
              <${Menu}
                label=${t('files.actions', { path: file.path })}
                items=${[
                  { label: t('files.download'), icon: 'download', action: () => download(store, id, file.path) },
                  { label: t('conversation.delete'), icon: 'trash', danger: true, action: () => remove(file.path) },
                ]}
              />
            </li>`,
          )}
        </ul>
        ${items?.length === 0 && html`<p class="empty">${t('files.empty')}</p>`}
        ${!items && !error && html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`}`}
  </aside>`;
}

function Path({ path }) {
  const at = path.lastIndexOf('/') + 1;
  return html`<span class="muted">${path.slice(0, at)}</span>${path.slice(at)}`;
}

async function download(store, id, path) {
  try {
    saveBlob(await store.api.file(id, path), path.split('/').at(-1));
  } catch (error) {
    store.toast(explain(error));
  }
}

const LANGUAGES = { py: 'python', js: 'javascript', mjs: 'javascript', ts: 'typescript', sh: 'bash', md: 'markdown', yml: 'yaml', rs: 'rust', htm: 'xml', html: 'xml', svg: 'xml', toml: 'ini' };

function languageOf(path) {
  const suffix = path.split('.').at(-1).toLowerCase();
  return LANGUAGES[suffix] ?? suffix;
}

function Preview({ id, file }) {
  const store = useStore();
  const [shown, setShown] = useState({ kind: 'loading' });
  useEffect(() => {
    let current = true;
    preview(store.api, id, file).then(
      (result) => current && setShown(result),
      (error) => current && setShown({ kind: 'note', text: explain(error) }),
    );
    return () => (current = false);
  }, [file]);
  useEffect(() => () => shown.kind === 'image' && URL.revokeObjectURL(shown.url), [shown]);
  switch (shown.kind) {
    case 'text':
      return html`<div class="preview-body"><${Code} language=${languageOf(file.path)} source=${shown.text} label=${file.path} /></div>`;
    case 'image':
      return html`<div class="preview-body"><img src=${shown.url} alt=${file.path} /></div>`;
    case 'note':
      return html`<p class="empty">${shown.text}</p>`;
    default:
      return html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`;
  }
}

async function preview(api, id, file) {
  if (file.size > MAX_PREVIEW_BYTES) return { kind: 'note', text: t('files.tooLarge', { size: formatBytes(file.size) }) };
  const blob = await api.file(id, file.path);
  if (/\.(png|jpe?g|gif|webp)$/i.test(file.path)) return { kind: 'image', url: URL.createObjectURL(blob) };
  const bytes = await blob.arrayBuffer();
  try {
    return { kind: 'text', text: new TextDecoder('utf-8', { fatal: true }).decode(bytes) };
  } catch {
    return { kind: 'note', text: t('files.notText') };
  }
}
