/** A field of a form whose value is the path of a file in the workspace: choose one, or upload one. */

import { t } from '../strings.mjs';
import { useAction, useRead } from './requests.mjs';
import { FilePicker, IconButton, html, useStore } from './ui.mjs';

/** @param {{field: FormField, common: Json, value: string, onChange: (name: string, path: string) => void}} properties */
export function FileField({ field, common, value, onChange }) {
  const { api, navigation, toasts, workspace } = useStore();
  const { busy, run } = useAction();
  const id = navigation.currentId.value;
  const { value: page } = useRead(id && (() => api.files(id)), [id]);
  const upload = (/** @type {File[]} */ [file]) =>
    run(() => toasts.attempt(async () => onChange(field.name, await workspace.storeFile(file))));
  return html`<div class="file-field bar">
    <input
      ...${common}
      class="grow"
      type="text"
      list=${`${common.id}-paths`}
      placeholder=${t('form.path')}
      value=${value}
      onInput=${(event) => onChange(field.name, event.target.value)} />
    <datalist id=${`${common.id}-paths`}>
      ${page?.items.map(({ path }) => html`<option value=${path} />`)}
    </datalist>
    <${FilePicker}
      Button=${IconButton}
      name="upload"
      label=${t('form.upload', { label: field.label })}
      disabled=${busy}
      onPicked=${upload}
      input=${{}} />
  </div>`;
}
