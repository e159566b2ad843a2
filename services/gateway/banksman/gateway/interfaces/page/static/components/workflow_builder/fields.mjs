/** The fields of the form that starts a workflow. */

import { FIELD_KINDS, moved, nameOf } from '../../workflow_draft.mjs';
import { known, t } from '../../strings.mjs';
import { Box, Choice, TextField, namesIn } from '../fields.mjs';
import { Icon, IconButton, SmallButton, html } from '../ui.mjs';

/** @typedef {WorkflowDraft['fields'][number]} Field */

/** @param {{value: Field[], onChange: (fields: Field[]) => void}} properties */
export function Fields({ value: fields, onChange }) {
  const set = (/** @type {number} */ at, /** @type {Partial<Field>} */ change) =>
    onChange(fields.with(at, { ...fields[at], ...change }));
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
          aria-label=${t('builder.field', { number: at + 1 })}>
          <${TextField}
            label=${t('builder.fieldLabel')}
            value=${field.label || field.name}
            onChange=${(/** @type {string} */ label) => set(at, labelled(field, label))}
            maxlength="100"
            required />
          <${Choice}
            label=${t('builder.fieldKind')}
            value=${field.kind}
            onChange=${(/** @type {string} */ kind) => set(at, { kind })}
            options=${kindsFor(field)}
            disabled=${field.kind === 'other'} />
          ${
            (field.kind === 'choice' || field.kind === 'several') &&
            html`<${TextField}
              label=${t('builder.choices')}
              value=${field.choices.join('\n')}
              onChange=${(/** @type {string} */ text) => set(at, { choices: namesIn(text, '\n') })}
              rows="3"
              required />`
          }
          <div class="wrap">
            <${Box}
              label=${t('builder.required')}
              value=${field.required}
              onChange=${(/** @type {boolean} */ required) => set(at, { required })} />
            ${
              at > 0 &&
              html`<${IconButton}
                name="up"
                label=${t('builder.up')}
                size=${16}
                onClick=${() => onChange(moved(fields, at, -1))} />`
            }
            <${IconButton}
              name="trash"
              label=${t('builder.removeField')}
              size=${16}
              onClick=${() => onChange(fields.toSpliced(at, 1))} />
          </div>
        </div>`,
    )}
    <${SmallButton} onClick=${add}> <${Icon} name="plus" size=${15} />${t('builder.addField')}<//>
  </fieldset>`;
}

const kindsFor = (/** @type {{kind: string}} */ { kind }) =>
  [...Object.keys(FIELD_KINDS), ...(kind === 'other' ? [kind] : [])].map((name) => [
    name,
    known(`builder.kind.${name}`, name),
  ]);

/** A stored field keeps its name, because steps refer to it. @param {Field} field @param {string} label */
function labelled(field, label) {
  return field.property ? { label } : { label, name: nameOf(label) };
}
