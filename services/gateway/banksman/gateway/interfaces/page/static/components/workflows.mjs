/** Workflows: choose one by category, fill in its form, follow its run. */

import { useMemo, useState } from 'preact/hooks';

import { fieldsOf, initialValues, readForm } from '../forms.mjs';
import { withoutPattern } from '../pattern_words.mjs';
import { t } from '../strings.mjs';
import { withDefaults } from '../workflow_draft.mjs';
import { categoriesOf, workflowInWords } from '../workflow_words.mjs';
import { Box, Check } from './fields.mjs';
import { categoryIcon } from './icons.mjs';
import { FormError, Reading, useAction, useRead } from './requests.mjs';
import { Dialog, Icon, SmallButton, html, lazy, useStore } from './ui.mjs';

/** @typedef {import('../forms.mjs').Raw} Raw @typedef {(name: string, value: Raw) => void} Change */
/** @typedef {{name?: string, parameters?: Json, problems?: Replies['workflow.parse']['problems'], number: number}} Filled */

const FileField = lazy(() => import('./file_field.mjs'), 'FileField', TextInput);

export function WorkflowDialog() {
  const { api, runs } = useStore();
  const [query, setQuery] = useState('');
  const [chosen, setChosen] = useState(/** @type {Workflow | null} */ (null));
  const opened = runs.form.value;
  const [filled, setFilled] = useState(
    /** @type {Filled} */ ({ ...(typeof opened === 'object' ? opened : {}), number: 0 }),
  );
  const close = () => (runs.form.value = false);
  const read = useRead(async () => {
    const items = await categoriesOf(api);
    const workflows = items.flatMap((category) => category.workflows);
    setChosen(workflows.find((one) => one.name === filled.name) ?? null);
    return items;
  });
  const categories = read.value;
  const found = useMemo(() => matching(categories ?? [], query), [categories, query]);
  const fill = async () => {
    const { workflow, parameters, problems } = await api.call('workflow.parse', {}, { text: query });
    setFilled({ name: workflow.name, parameters, problems, number: filled.number + 1 });
    setChosen(workflowInWords(workflow));
  };
  return html`<${Dialog} title=${t('workflow.title')} onClose=${close} wide>
    <div class=${`workflows ${chosen ? 'chosen' : ''}`}>
      <div class="workflow-list">
        <div class="search">
          <${Icon} name="search" size=${15} /><input
            type="search"
            placeholder=${t('workflow.find')}
            aria-label=${t('workflow.find')}
            value=${query}
            onInput=${(event) => setQuery(event.target.value)} />
        </div>
        <${Reading} of=${read} />
        ${
          categories &&
          !found.length &&
          html`<p class="empty">${t(query ? 'app.noResults' : 'workflow.none')}</p>`
        }
        ${found.map(
          (category) =>
            html`<section>
              <h3 class="category bar">
                <${Icon} name=${categoryIcon(category)} size=${16} />${category.title || category.name}
              </h3>
              <ul>
                ${category.workflows.map(
                  (workflow) =>
                    html`<li>
                      <button
                        type="button"
                        aria-pressed=${chosen?.name === workflow.name}
                        onClick=${() => setChosen(workflow)}>
                        <strong>${workflow.title || workflow.name}</strong
                        ><span>${workflow.description}</span>
                      </button>
                    </li>`,
                )}
              </ul>
            </section>`,
        )}
        ${query.trim() && html`<${FromWords} key=${query} onFill=${fill} />`}
      </div>
      <div class="workflow-form">
        ${
          chosen
            ? html`<${WorkflowForm}
                key=${`${chosen.name} ${filled.number}`}
                workflow=${chosen}
                filled=${chosen.name === filled.name ? filled : {}}
                onBack=${() => setChosen(null)}
                onStarted=${close} />`
            : html`<p class="empty">${t('workflow.choose')}</p>`
        }
      </div>
    </div>
  <//>`;
}

/**
 * A button that lets a model choose the workflow and fill in its form from the words of the search.
 *
 * @param {{onFill: () => Promise<void>}} properties
 */
function FromWords({ onFill }) {
  const { busy, error, run } = useAction();
  return html`<${SmallButton} disabled=${busy} onClick=${() => run(onFill)}>
      ${busy ? t('app.loading') : t('workflow.fromWords')}
    <//>
    <${FormError} error=${error} />`;
}

function matching(/** @type {Item<'workflow.categories'>[]} */ categories, /** @type {string} */ query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (/** @type {Workflow} */ workflow) =>
    words.every((word) =>
      `${workflow.name} ${workflow.title} ${workflow.description}`.toLowerCase().includes(word),
    );
  return categories
    .map((category) => ({ ...category, workflows: category.workflows.filter(fits) }))
    .filter((category) => category.workflows.length);
}

/**
 * @param {{workflow: Workflow, filled: Partial<Filled>, onBack: () => void, onStarted: () => void}} properties
 */
function WorkflowForm({ workflow, filled, onBack, onStarted }) {
  const { runs } = useStore();
  const schema = useMemo(() => withDefaults(workflow.parameters_schema, filled.parameters ?? {}), [workflow]);
  const start = async (/** @type {Json} */ parameters) => {
    await runs.startWorkflow(workflow.name, parameters);
    onStarted();
  };
  return html`<button type="button" class="link back" onClick=${onBack}>
      <${Icon} name="back" size=${15} />${t('workflow.all')}
    </button>
    <h3>${workflow.title || workflow.name}</h3>
    <p class="muted">${workflow.description}</p>
    <${Problems} problems=${filled.problems ?? []} fields=${schema.properties} />
    <${SchemaForm} schema=${schema} submitLabel=${t('workflow.start')} onSubmit=${start} />`;
}

/**
 * The values of a command or a model that the form rejects. Missing values are not listed: their fields are empty.
 *
 * @param {{problems: Replies['workflow.parse']['problems'], fields: FormField[]}} properties
 */
function Problems({ problems, fields }) {
  const wrong = problems.filter(({ parameter, value }) => hasValue(value) || !(parameter in fields));
  if (!wrong.length) return null;
  return html`<div class="form-error" role="alert">
    ${wrong.map(
      ({ parameter, value, expected }) =>
        html`<p>
          ${t('workflow.problem', {
            given: hasValue(value) ? `${parameter}=${asText(value)}` : parameter,
            expected,
          })}
        </p>`,
    )}
  </div>`;
}

const hasValue = (/** @type {unknown} */ value) => value !== null && value !== undefined;
const asText = (/** @type {unknown} */ value) => (typeof value === 'string' ? value : JSON.stringify(value));

let forms = 0;

/**
 * A form for an object schema; `onSubmit` receives valid values.
 *
 * @param {{schema: Schema, submitLabel: string, onSubmit: (value: Json) => Promise<unknown>, beside?: Shown}} properties
 * `beside` is shown before the button that submits
 */
export function SchemaForm({ schema, submitLabel, onSubmit, beside }) {
  const fields = useMemo(() => fieldsOf(schema), [schema]);
  // Several forms may be shown at once, with fields of the same names.
  const prefix = useMemo(() => `form-${(forms += 1)}`, []);
  const [raw, setRaw] = useState(() => initialValues(fields));
  const [errors, setErrors] = useState(/** @type {Record<string, string>} */ ({}));
  const { busy, error, run } = useAction();
  const change = (/** @type {string} */ name, /** @type {Raw} */ value) => {
    const next = { ...raw, [name]: value };
    setRaw(next);
    if (errors[name]) setErrors({ ...errors, [name]: readForm(fields, next).errors[name] });
  };
  const submit = (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    const form = event.currentTarget;
    const read = readForm(fields, raw);
    setErrors(read.errors);
    const [first] = fields.filter((field) => read.errors[field.name]);
    if (first)
      return /** @type {HTMLElement | null} */ (
        form.querySelector(`[name="${CSS.escape(first.name)}"]`)
      )?.focus();
    return run(() => onSubmit(read.value));
  };
  return html`<form class="schema-form" novalidate onSubmit=${submit}>
    ${fields.map(
      (field) =>
        html`<${Field}
          key=${field.name}
          id=${`${prefix}-${field.name}`}
          field=${field}
          value=${raw[field.name]}
          error=${errors[field.name]}
          onChange=${change} />`,
    )}
    ${!fields.length && html`<p class="muted">${t('form.noParameters')}</p>`}
    <${FormError} error=${error && withoutPattern(error)} />
    <div class="dialog-actions">
      ${beside}
      <button class="button primary" disabled=${busy}>${busy ? t('form.sending') : submitLabel}</button>
    </div>
  </form>`;
}

/** @param {{id: string, field: FormField, value: Raw, error?: string, onChange: Change}} properties */
function Field({ id, field, value, error, onChange }) {
  const described =
    [field.description && `${id}-help`, error && `${id}-error`].filter(Boolean).join(' ') || undefined;
  const common = {
    id,
    name: field.name,
    'aria-describedby': described,
    'aria-invalid': Boolean(error),
    'aria-required': field.required,
  };
  const help = html`${field.description && html`<small id=${`${id}-help`}>${field.description}</small>`}
  ${error && html`<p class="form-error" id=${`${id}-error`}>${error}</p>`}`;
  if (field.kind === 'several')
    return html`<${Several} id=${id} field=${field} value=${value} common=${common} onChange=${onChange}
      >${help}<//
    >`;
  if (field.kind === 'boolean') {
    const set = (/** @type {boolean} */ on) => onChange(field.name, on);
    return html`<${Check} label=${field.label} value=${value} onChange=${set} ...${common}>${help}<//>`;
  }
  return html`<div class="form-field">
    <label for=${id}><${Label} field=${field} /></label>
    <${Control} field=${field} common=${common} value=${value} onChange=${onChange} />
    ${help}
  </div>`;
}

function Label(/** @type {{field: FormField}} */ { field }) {
  return html`${field.label}${
    field.required
      ? html`<span class="required" aria-hidden="true"> *</span>`
      : html`<span class="optional muted text-xs"> ${t('form.optional')}</span>`
  }`;
}

/**
 * A group of checkboxes. Its value contains the indexes of the checked ones.
 *
 * @param {{id: string, field: FormField, value: string[], common: Json, onChange: Change, children: Shown}} properties
 */
function Several({ id, field, value, common, onChange, children }) {
  const toggle = (/** @type {number} */ at, /** @type {boolean} */ on) =>
    onChange(
      field.name,
      field.choices.flatMap((_, one) =>
        (one === at ? on : value.includes(String(one))) ? [String(one)] : [],
      ),
    );
  return html`<fieldset class="form-field several" aria-describedby=${common['aria-describedby']}>
    <legend><${Label} field=${field} /></legend>
    ${field.choices.map(
      (choice, at) =>
        html`<${Box}
          id=${`${id}-${at}`}
          name=${field.name}
          aria-invalid=${common['aria-invalid']}
          label=${String(choice)}
          value=${value.includes(String(at))}
          onChange=${(/** @type {boolean} */ on) => toggle(at, on)} />`,
    )}
    ${children}
  </fieldset>`;
}

/** The attributes of a line or, with `rows`, of several lines of text. @param {FormField} field @returns {Json} */
function attributesOf({ kind }) {
  switch (kind) {
    case 'strings':
      return { rows: '3', placeholder: t('form.perLine') };
    case 'text':
      return { rows: '4' };
    case 'json':
      return { rows: '4', class: 'mono', placeholder: 'JSON', spellcheck: false };
    case 'integer':
      return { type: 'text', inputmode: 'numeric' };
    case 'number':
      return { type: 'text', inputmode: 'decimal' };
    case 'secret':
      return { type: 'password', autocomplete: 'off' };
    default:
      return { type: kind === 'date' ? 'date' : 'text' };
  }
}

/** @typedef {{field: FormField, common: Json, value: Raw, onChange: Change}} ControlProperties */
/** @param {ControlProperties} properties */
function TextInput({ field, common, value, onChange }) {
  const attributes = attributesOf(field);
  return html`<${attributes.rows ? 'textarea' : 'input'}
    ...${common}
    ...${attributes}
    value=${value}
    onInput=${(/** @type {PageEvent} */ event) => onChange(field.name, event.target.value)} />`;
}

/** @param {ControlProperties} properties */
function Control(properties) {
  const { field, common, value, onChange } = properties;
  if (field.kind === 'file') return html`<${FileField} ...${properties} />`;
  if (field.kind !== 'choice') return html`<${TextInput} ...${properties} />`;
  return html`<select
    ...${common}
    value=${value}
    onChange=${(event) => onChange(field.name, event.target.value)}>
    <option value="">${t(field.required ? 'form.choose' : 'form.none')}</option>
    ${field.choices.map((choice, at) => html`<option value=${String(at)}>${String(choice)}</option>`)}
  </select>`;
}

/** A workflow that was started in this conversation, with the events of its own log. @param {{link: Linked, Run: Function}} properties */
export function LinkedWorkflow({ link, Run }) {
  const { opened, settings } = useStore();
  const linked = useMemo(() => opened.follow(link.workflow_conversation_id), [link.workflow_conversation_id]);
  const run = linked.value.runs.find((/** @type {Run} */ candidate) => candidate.id === link.workflow_run_id);
  return html`<section class="linked" role="group" aria-label=${t('workflow.label', { name: link.workflow })}>
    <header class="bar"><${Icon} name="workflow" size=${16} /><strong>${link.workflow}</strong></header>
    ${
      run
        ? html`<${Run} run=${run} details=${settings.details.value} />`
        : html`<p class="empty"><span class="spinner" /> ${t('workflow.starting')}</p>`
    }
  </section>`;
}
