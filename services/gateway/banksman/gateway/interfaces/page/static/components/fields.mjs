/** Forms: their fields, each with its label, and the dialog that sends one. Values are passed on, not events. */

import { useLayoutEffect, useState } from 'preact/hooks';

import { t } from '../strings.mjs';
import { FormError, useAction } from './requests.mjs';
import { Dialog, Icon, html } from './ui.mjs';

/** @template Value @typedef {{label: Shown, value: Value, onChange: (value: Value) => void, children?: Shown} & Record<string, unknown>} Field */

/**
 * A line of text, or several with `rows`. Children explain it; other properties are those of the control.
 *
 * @param {Field<string> & {late?: boolean, rows?: string, field?: {current: unknown}}} properties `late` if the value
 *   is passed on when the user has finished; `field` refers to the control
 */
export function TextField({ label, value, onChange, late, field, children, ...control }) {
  const changed = (/** @type {PageEvent} */ event) => onChange(event.target.value);
  const plain = control.rows ? 'textarea' : 'input';
  return html`<label class="form-field"
    ><span>${label}</span>${
      late
        ? html`<${LateInput} value=${value} onChange=${onChange} ...${control} />`
        : html`<${plain} ref=${field} value=${value} onInput=${changed} ...${control} />`
    }${children}</label
  >`;
}

/**
 * A line of text that is passed on, without spaces around it, when the user has finished. Until then it keeps what the user writes, also when
 * the view is drawn again: a plain control would then get the old value back.
 *
 * @param {{value: string, onChange: (value: string) => void} & Record<string, unknown>} properties
 */
export function LateInput({ value, onChange, ...control }) {
  const [typed, setTyped] = useState(value);
  // Before the next key press: an effect that runs later would undo it.
  useLayoutEffect(() => setTyped(value), [value]);
  return html`<input
    value=${typed}
    onInput=${(/** @type {PageEvent} */ event) => setTyped(event.target.value)}
    onChange=${(/** @type {PageEvent} */ event) => onChange(event.target.value.trim())}
    ...${control} />`;
}

/** @param {Field<string> & {options: [string, Shown, object?][]}} properties `options`: values with their texts, and attributes */
export function Choice({ label, value, onChange, options, children, ...control }) {
  return html`<label class="form-field"
    ><span>${label}</span
    ><select value=${value} onChange=${(event) => onChange(event.target.value)} ...${control}>
      ${options.map(
        ([name, text, attributes]) =>
          html`<option key=${name} value=${name} ...${attributes}>${text}</option>`,
      )}</select
    >${children}</label
  >`;
}

/**
 * The value of a field of a draft, and what changes it, as properties of a control.
 *
 * @template {object} Draft
 * @param {Draft} draft
 * @param {(fields: Partial<Draft>) => void} change gets the changed field
 */
export const bound = (draft, change) => (/** @type {keyof Draft} */ name) => ({
  value: draft[name],
  onChange: (/** @type {Draft[keyof Draft]} */ value) =>
    change(/** @type {Partial<Draft>} */ ({ [name]: value })),
});

/** A box and its label, in one line. @param {Field<boolean>} properties */
export function Box({ label, value, onChange, ...control }) {
  return html`<label class="box"
    ><input
      type="checkbox"
      checked=${value}
      onChange=${(event) => onChange(event.target.checked)}
      ...${control} />${label}</label
  >`;
}

/** A box with what explains it. @param {Field<boolean>} properties */
export function Check({ children, ...box }) {
  return html`<div class="form-field"><${Box} ...${box} />${children}</div>`;
}

/**
 * The fields that select the entries of a list. A narrow window shows them on request.
 *
 * @param {{values: object, children: Shown}} properties
 */
export function Filters({ values, children }) {
  const [isOpen, setOpen] = useState(false);
  const count = Object.values(values).filter(Boolean).length;
  return html`<button
      type="button"
      class="button filters-button"
      aria-expanded=${isOpen}
      onClick=${() => setOpen(!isOpen)}>
      <${Icon} name="search" size=${15} />${t('app.filters')}${count > 0 && ` (${count})`}
    </button>
    <div class=${isOpen ? 'filters' : 'filters folded'} role="search">${children}</div>`;
}

/** The names in a text that separates them. @param {string} text @param {string} [separator] */
export const namesIn = (text, separator = ',') =>
  text
    .split(separator)
    .map((name) => name.trim())
    .filter(Boolean);

/**
 * A dialog that asks for some values or for a confirmation, and says why they were refused.
 *
 * @param {{title: string, label: Shown, onSubmit: () => unknown, onClose: () => void, danger?: boolean, disabled?: boolean, cancel?: string, actions?: Shown, children: Shown}} properties
 *   `label` is the text of the button that calls `onSubmit`, once at a time; `actions` replace both buttons
 */
export function FormDialog({ title, label, onSubmit, onClose, danger, disabled, cancel, actions, children }) {
  const { busy, error, run } = useAction();
  const submit = (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    return run(onSubmit);
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form class="dialog-body" onSubmit=${submit}>
      ${children}
      <${FormError} error=${error} />
      ${
        actions ||
        html`<div class="dialog-actions">
          <button type="button" class="button" onClick=${onClose}>${cancel ?? t('app.cancel')}</button>
          <button class=${`button ${danger ? 'danger' : 'primary'}`} disabled=${busy || disabled}>
            ${label}
          </button>
        </div>`
      }
    </form>
  <//>`;
}
