/** The files that each new workspace of an assistant starts with, and its skills, which are folders of such files. */

import { useState } from 'preact/hooks';

import { SKILLS, assistantFile, folderOf, skillFiles, withFiles } from '../../assistant_files.mjs';
import { parts, t } from '../../strings.mjs';
import { FormError } from '../requests.mjs';
import { FilePicker, Icon, IconButton, SmallButton, html } from '../ui.mjs';

/** @param {{value: AssistantFile[], onChange: (files: AssistantFile[]) => void}} properties */
export function AssistantFiles({ value: files, onChange }) {
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
const Picker = ({ label, onPicked, folder = false }) =>
  html`<${FilePicker}
    Button=${SmallButton}
    onPicked=${onPicked}
    input=${{ 'aria-label': label, multiple: !folder, webkitdirectory: folder }}
    children=${label} />`;
