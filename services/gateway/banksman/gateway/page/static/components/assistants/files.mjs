/** The files that each new workspace of an assistant starts with. */

import { useRef } from 'preact/hooks';

import { t } from '../../strings.mjs';
import { Icon, IconButton, html } from '../ui.mjs';

/** @param {{files: {path: string, content: string}[], onChange: (files: object[]) => void}} properties */
export function AssistantFiles({ files, onChange }) {
  const picker = useRef(null);
  const add = async (event) => {
    const picked = [...event.target.files];
    event.target.value = '';
    const read = await Promise.all(picked.map(async (file) => ({ path: file.name, content: await file.text() })));
    const paths = new Set(read.map((file) => file.path));
    onChange([...files.filter((file) => !paths.has(file.path)), ...read]);
  };
  return html`<fieldset class="assistant-part">
    <legend>${t('assistant.files')}</legend>
    <p class="muted">${t('assistant.filesText')}</p>
    <ul class="attached">
      ${files.map((file) => html`<li key=${file.path} class="attached-file"><${Icon} name="file" size=${16} /><span class="attached-name">${file.path}</span><${IconButton} name="close" size=${14} label=${t('attach.remove', { name: file.path })} onClick=${() => onChange(files.filter((one) => one !== file))} /></li>`)}
    </ul>
    <button type="button" class="button small" onClick=${() => picker.current.click()}>${t('assistant.addFile')}</button>
    <input ref=${picker} type="file" multiple hidden onChange=${add} />
  </fieldset>`;
}
