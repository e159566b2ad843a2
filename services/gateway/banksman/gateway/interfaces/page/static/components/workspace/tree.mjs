/** The files of a workspace in their folders. */

import { t } from '../../strings.mjs';
import { formatBytes, formatWhen } from '../../text.mjs';
import { treeOf } from '../../workspace.mjs';
import { Exact, Icon, Menu, html } from '../ui.mjs';

/** Folders with more files than this are collapsed initially. */
const OPEN_FILES = 30;

/** @param {{items: WorkspaceFile[], onOpen: (file: WorkspaceFile) => void, menuOf: (file: WorkspaceFile) => object[]}} properties */
export function FileTree({ items, onOpen, menuOf }) {
  return html`<${Folder} folder=${treeOf(items)} onOpen=${onOpen} menuOf=${menuOf} />`;
}

/** @param {{folder: Folder, onOpen: (file: WorkspaceFile) => void, menuOf: (file: WorkspaceFile) => object[]}} properties */
function Folder({ folder, onOpen, menuOf }) {
  return html`<ul class="files">
    ${folder.folders.map(
      (child) =>
        html`<li key=${child.path} class="folder">
          <details open=${child.files.length <= OPEN_FILES}>
            <summary class="bar">
              <${Icon} name="folder" size=${16} /><span><${Exact} text=${child.name} /></span>
            </summary>
            <${Folder} folder=${child} onOpen=${onOpen} menuOf=${menuOf} />
          </details>
        </li>`,
    )}
    ${folder.files.map(
      (file) =>
        html`<li key=${file.path}>
          <button type="button" class="file grow" onClick=${() => onOpen(file)}>
            <${Icon} name="file" size=${16} />
            <span class="file-path text-m"><${Exact} text=${file.path.split('/').at(-1)} /></span>
            <span class="muted text-xs">${formatBytes(file.size)} · ${formatWhen(file.modified_at)}</span>
          </button>
          <${Menu} label=${t('files.actions', { path: file.path })} items=${menuOf(file)} />
        </li>`,
    )}
  </ul>`;
}
