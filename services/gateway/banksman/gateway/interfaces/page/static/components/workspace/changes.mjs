/** The changes of the agent to files since the conversation began. */

import { useState } from 'preact/hooks';

import { t } from '../../strings.mjs';
import { changesOf } from '../../workspace.mjs';
import { Diff } from '../diff.mjs';
import { useRead } from '../requests.mjs';
import { saveBlob } from '../tools.mjs';
import { Loading, SmallButton, html, useStore } from '../ui.mjs';

const MAX_DIFF_BYTES = 256 * 1024;

export function Changes(/** @type {{id: string}} */ { id }) {
  const { api, opened, toasts } = useStore();
  const changes = changesOf(opened.current.value ?? { runs: [] });
  if (!changes.length) return html`<p class="empty">${t('files.noChanges')}</p>`;
  const download = () =>
    toasts.attempt(async () =>
      saveBlob(await api.blob('file.patch', { conversation_id: id }), `${id}.patch`),
    );
  return html`<${SmallButton} onClick=${download}>${t('files.downloadPatch')}<//>
    <ul class="file-changes">
      ${changes.map((one) => html`<li key=${one.path}><${Change} id=${id} change=${one} /></li>`)}
    </ul>`;
}

/** @param {{id: string, change: FileChange}} properties */
function Change({ id, change: { path, change, since, before } }) {
  const { api, workspace } = useStore();
  const [open, setOpen] = useState(false);
  const isKnown = change === 'deleted' && before !== undefined;
  /** @returns {Promise<Shown>} */
  const read = async () => {
    if (before === undefined)
      return compared(await api.call('file.diff', { conversation_id: id, path, since }));
    const blob = await api.file(id, path);
    return blob.size > MAX_DIFF_BYTES
      ? { note: t('files.notCompared.too_large') }
      : { after: await blob.text() };
  };
  const { value: shown, error } = useRead(open && !isKnown && read, [open, workspace.version.value]);
  return html`<details class="folded" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>
      <span class=${`status ${change === 'deleted' ? 'failed' : change === 'created' ? 'done' : ''}`}
        >${t(`timeline.change.${change}`)}</span
      ><code class="anywhere">${path}</code>
    </summary>
    ${
      open &&
      html`<${Compared}
        path=${path}
        change=${change}
        before=${before}
        shown=${error ? { note: error } : shown} />`
    }
  </details>`;
}

/** @typedef {{note?: string, patch?: string, after?: string}} Shown */

/** @param {Replies['file.diff']} diff @returns {Shown} */
function compared({ files: [file], patch }) {
  if (!file) return { note: t('files.unchanged') };
  return file.not_compared ? { note: t(`files.notCompared.${file.not_compared}`) } : { patch };
}

/** @param {Omit<FileChange, 'since'> & {shown: Shown | null}} properties */
function Compared({ path, change, before, shown }) {
  if (shown?.note) return html`<p class="muted">${shown.note}</p>`;
  if (shown?.patch !== undefined) return html`<${Diff} path=${path} before="" patch=${shown.patch} />`;
  if (change === 'deleted' && before !== undefined)
    return html`<${Diff} path=${path} before=${before} after="" />`;
  return shown ? html`<${Diff} path=${path} before=${before} after=${shown.after} />` : html`<${Loading} />`;
}
