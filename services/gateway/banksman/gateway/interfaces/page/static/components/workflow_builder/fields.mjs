/** The fields of the form that starts a workflow. */

import { FIELD_KINDS, moved, nameOf } from '../../workflow_draft.mjs';
import { t } from '../../strings.mjs';
import { Icon, IconButton, html } from '../ui.mjs';

export function Fields(/** @type {{fields: FormField[], onChange: () => void}} */ { fields, onChange }) {
  const set = (at, change) => onChange(fields.with(at, { ...fields[at], ...change }));
  const add = () => onChange([...fields, { name: '', label: '', kind: 'text', choices: [], required: true }]);
  return html`<fieldset class="builder-part">
    <legend>${t('builder.fields')}</legend>
    <p class="muted">${t('builder.fieldsText')}</p>
    ${fields.map(
      (field, at) =>
        html`<div
          key=${at}
          class="builder-row"
          role="group"
          aria-label=${t('builder.field', { number: at + 1 })}
        >
          <label class="form-field"
            ><span>${t('builder.fieldLabel')}</span>
            <input
              maxlength="100"
              required
              value=${field.label || field.name}
              onInput=${(event) => set(at, labelled(field, event.target.value))}
          /></label>
          <label class="form-field"
            ><span>${t('builder.fieldKind')}</span>
            <select
              value=${field.kind}
              disabled=${field.kind === 'other'}
              onChange=${(event) => set(at, { kind: event.target.value })}
            >
              ${[...Object.keys(FIELD_KINDS), ...(field.kind === 'other' ? ['other'] : [])].map((kind) => html`<option value=${kind}>${t(`builder.kind.${kind}`)}</option>`)}
            </select></label
          >
          ${
            (field.kind === 'choice' || field.kind === 'several') &&
            html`<label class="form-field"
              ><span>${t('builder.choices')}</span>
              <textarea
                rows="3"
                required
                value=${field.choices.join('\n')}
                onInput=${(event) =>
                  set(at, {
                    choices: event.target.value
                      .split('\n')
                      .map((line) => line.trim())
                      .filter(Boolean),
                  })}
              />
            </label>`
          }
          <div class="builder-actions">
            <label class="builder-check"
              ><input
                type="checkbox"
                checked=${field.required}
                onChange=${(event) => set(at, { required: event.target.checked })}
              />
              ${t('builder.required')}</label
            >
            ${at > 0 && html`<${IconButton} name="up" label=${t('builder.up')} size=${16} onClick=${() => onChange(moved(fields, at, -1))} />`}
            <${IconButton}
              name="trash"
              label=${t('builder.removeField')}
              size=${16}
              onClick=${() => onChange(fields.toSpliced(at, 1))}
            />
          </div>
        </div>`,
    )}
    <button type="button" class="button small" onClick=${add}>
      <${Icon} name="plus" size=${15} />${t('builder.addField')}
    </button>
  </fieldset>`;
}

/** A stored field keeps its name, because steps refer to it. @param {FormField} field @param {string} label */
function labelled(field, label) {
  return field.property ? { label } : { label, name: nameOf(label) };
}
