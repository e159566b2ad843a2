/** The workspace of the open conversation: its files, what changed in them, the commands that ran, and those that still run. */

import { useLayoutEffect, useRef, useState } from 'preact/hooks';

import { t } from '../strings.mjs';
import { Empty, FormError, useAction, useRead } from './requests.mjs';
import { saveBlob } from './tools.mjs';
import { FilePicker, IconButton, Loading, TextButton, html, lazy, useStore } from './ui.mjs';
import { OpenedFile } from './workspace/opened.mjs';
import { FileTree } from './workspace/tree.mjs';

const Changes = lazy(() => import('./workspace/changes.mjs'), 'Changes');
const Processes = lazy(() => import('./workspace/processes.mjs'), 'Processes');
const Terminal = lazy(() => import('./workspace/terminal.mjs'), 'Terminal');

const TABS = /** @type {const} */ (['files', 'changes', 'terminal', 'running']);
/** @typedef {ReturnType<typeof useFiles>} Files */

export function FilePanel() {
  const { navigation } = useStore();
  const id = /** @type {string} */ (navigation.currentId.value);
  const [tab, setTab] = useState(/** @type {typeof TABS[number]} */ ('files'));
  const [opened, setOpened] = useState(/** @type {WorkspaceFile | null} */ (null));
  const panel = useRef(/** @type {HTMLElement | null} */ (null));
  const files = useFiles(id);
  useLayoutEffect(() => {
    const opener = /** @type {HTMLElement | null} */ (document.activeElement);
    const { current } = panel;
    current?.focus();
    return () => current?.contains(document.activeElement) && opener?.focus();
  }, []);
  const close = () => (navigation.panel.value = null);
  const drop = (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    files.upload(event.dataTransfer?.files ?? []);
  };
  const onKeyDown = (/** @type {PageEvent} */ event) => {
    // Escape in the editor ends a completion or a selection, and must not discard the typed text.
    if (event.key === 'Escape' && event.target.tagName !== 'TEXTAREA') opened ? setOpened(null) : close();
  };
  return html`<aside
    class="panel"
    aria-label=${t('header.files')}
    tabindex="-1"
    ref=${panel}
    onDragOver=${(event) => event.preventDefault()}
    onDrop=${drop}
    onKeyDown=${onKeyDown}>
    <header class="panel-head bar">
      ${
        opened && html`<${IconButton} name="back" label=${t('files.all')} onClick=${() => setOpened(null)} />`
      }
      <h2 class="grow">${opened ? opened.path.split('/').at(-1) : t('header.files')}</h2>
      ${
        opened
          ? html`<${IconButton}
              name="download"
              label=${t('files.download')}
              onClick=${() => files.download(opened.path)} />`
          : html`<${ListActions} files=${files} />`
      }
      <${IconButton} name="close" label=${t('files.close')} onClick=${close} />
    </header>
    ${
      !opened &&
      html`<div class="choice panel-tabs" role="group" aria-label=${t('files.tabs')}>
        ${TABS.map(
          (name) =>
            html`<button key=${name} type="button" aria-pressed=${tab === name} onClick=${() => setTab(name)}>
              ${t(`files.tab.${name}`)}
            </button>`,
        )}
      </div>`
    }
    <${FormError} error=${files.error} />
    ${opened && html`<${OpenedFile} id=${id} file=${opened} />`}
    ${!opened && tab === 'files' && html`<${FileList} files=${files} onOpen=${setOpened} />`}
    ${!opened && tab === 'changes' && html`<${Changes} id=${id} />`}
    ${!opened && tab === 'terminal' && html`<${Terminal} />`}
    ${!opened && tab === 'running' && html`<${Processes} id=${id} />`}
  </aside>`;
}

function ListActions(/** @type {{files: Files}} */ { files }) {
  return html` <${IconButton} name="refresh" label=${t('files.refresh')} onClick=${files.read} />
    <${Upload} files=${files} Button=${IconButton} />
    ${
      files.items &&
      files.items.length > 0 &&
      html`<${IconButton} name="download" label=${t('files.downloadAll')} onClick=${files.downloadAll} />`
    }`;
}

/** A button that chooses files to upload. @param {{files: Files, Button: Function}} properties */
function Upload({ files, Button }) {
  return html`<${FilePicker}
    Button=${Button}
    name="upload"
    label=${t('files.upload')}
    disabled=${files.busy}
    onPicked=${files.upload} />`;
}

function FileList(/** @type {{files: Files, onOpen: (file: WorkspaceFile) => void}} */ { files, onOpen }) {
  const { items, error } = files;
  const menuOf = (/** @type {WorkspaceFile} */ file) => [
    { label: t('files.download'), icon: 'download', action: () => files.download(file.path) },
    { label: t('app.delete'), icon: 'trash', danger: true, action: () => files.remove(file.path) },
  ];
  if (!items) return error ? null : html`<${Loading} />`;
  if (!items.length)
    return html`<${Empty} text=${t('files.empty')}><${Upload} files=${files} Button=${TextButton} /><//>`;
  return html`<${FileTree} items=${items} onOpen=${onOpen} menuOf=${menuOf} />`;
}

/** The files of a workspace with their actions. The list is read again after changes. @param {string} id */
function useFiles(id) {
  const { api, toasts, workspace } = useStore();
  const { value: page, error, read } = useRead(() => api.files(id), [workspace.version.value]);
  const { busy, run } = useAction();
  const uploadAll = async (/** @type {Iterable<File>} */ files) => {
    for (const file of files) await api.upload(id, file.name, file);
  };
  const upload = (/** @type {Iterable<File>} */ files) =>
    run(() => toasts.attempt(() => uploadAll(files))).then(read);
  const remove = (/** @type {string} */ path) => toasts.attempt(() => api.deleteFile(id, path)).then(read);
  const download = (/** @type {string} */ path) =>
    toasts.attempt(async () => saveBlob(await api.file(id, path), path.split('/').at(-1) ?? path));
  const downloadAll = () =>
    toasts.attempt(async () =>
      saveBlob(await api.blob('file.archive', { conversation_id: id }), `${id}.zip`),
    );
  return { items: page?.items ?? null, error, busy, read, upload, remove, download, downloadAll };
}
