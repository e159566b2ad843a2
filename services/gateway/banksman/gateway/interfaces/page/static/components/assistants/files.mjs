/** The files that each new workspace of an assistant starts with, and its skills, which are folders of such files. */

import { useRef, useState } from 'preact/hooks';

import { SKILLS, assistantFile, folderOf, skillFiles, withFiles } from '../../assistant_files.mjs';
import { parts, t } from '../../strings.mjs';
import { FormError } from '../requests.mjs';
import { Icon, IconButton, SmallButton, html } from '../ui.mjs';

/** @param {{files: AssistantFile[], onChange: (files: AssistantFile[]) => void}} properties */
export function AssistantFiles({ files, onChange }) {
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const add = async (/** @type {File[]} */ picked) =>
    onChange(withFiles(files, await Promise.all(picked.map((file) => assistantFile(file)))));
  const addSkill = async (/** @type {File[]} */ picked) => {
    const skill = await skillFiles(picked);
    setError(skill ? null : t('assistant.noSkill', { folder: folderOf(picked) }));
    if (skill) onChange(withFiles(files, skill));
  };
  return html`<fieldset class="assistant-part stack">
    <legend>${t('header.files')}</legend>
    <p class="muted">
      ${t('assistant.filesText')} ${parts('assistant.skillText', { folder: html`<code>${SKILLS}</code>` })}
    </p>
    <ul class="attached">
      ${files.map(
        (file) =>
          html`<li key=${file.path} class="attached-file bar text-s">
            <${Icon} name="file" size=${16} /><span class="attached-name">${file.path}</span>
            ${file.executable && html`<span class="muted">${t('assistant.executable')}</span>`}
            <${IconButton}
              name="close"
              size=${14}
              label=${t('attach.remove', { name: file.path })}
              onClick=${() => onChange(files.filter((one) => one !== file))} />
          </li>`,
      )}
    </ul>
    <${FormError} error=${error} />
    <div class="button-row">
      <${Picker} label=${t('assistant.addFile')} onPicked=${add} />
      <${Picker} label=${t('assistant.addSkill')} onPicked=${addSkill} folder />
    </div>
  </fieldset>`;
}

/** @param {{label: string, onPicked: (files: File[]) => void, folder?: boolean}} properties */
function Picker({ label, onPicked, folder = false }) {
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const pick = async (/** @type {PageEvent} */ event) => {
    const picked = [...(event.target.files ?? [])];
    event.target.value = '';
    if (picked.length) await onPicked(picked);
  };
  return html`<${SmallButton} onClick=${() => input.current?.click()}>${label}<//>
    <input
      ref=${input}
      type="file"
      aria-label=${label}
      multiple=${!folder}
      webkitdirectory=${folder}
      hidden
      onChange=${pick} />`;
}
