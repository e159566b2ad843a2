/** A field of a form whose value is the path of a file in the workspace: choose one, or upload one. */

import { useEffect, useRef, useState } from 'preact/hooks';

import { explain, t } from '../strings.mjs';
import { IconButton, html, useStore } from './ui.mjs';

/** @param {{field: FormField, common: Json, value: string, onChange: (name: string, path: string) => void}} properties */
export function FileField({ field, common, value, onChange }) {
  const store = useStore();
  const picker = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [paths, setPaths] = useState(/** @type {string[]} */ ([]));
  const [busy, setBusy] = useState(false);
  const id = store.currentId.value;
  useEffect(() => {
    if (id)
      store.api.files(id).then(
        ({ items }) => setPaths(items.map(({ path }) => path)),
        () => {},
      );
  }, [id]);
  const upload = async (/** @type {PageEvent} */ event) => {
    const [file] = event.target.files ?? [];
    event.target.value = '';
    setBusy(true);
    try {
      onChange(field.name, await store.storeFile(file));
    } catch (error) {
      store.toast(explain(error));
    }
    setBusy(false);
  };
  return html`<div class="file-field">
    <input
      ...${common}
      type="text"
      list=${`${common.id}-paths`}
      placeholder=${t('form.path')}
      value=${value}
      onInput=${(event) => onChange(field.name, event.target.value)}
    />
    <datalist id=${`${common.id}-paths`}>${paths.map((path) => html`<option value=${path} />`)}</datalist>
    <${IconButton}
      name="upload"
      label=${t('form.upload', { label: field.label })}
      disabled=${busy}
      onClick=${() => picker.current?.click()}
    />
    <input ref=${picker} type="file" hidden onChange=${upload} />
  </div>`;
}
