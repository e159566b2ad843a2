/** The steps of a workflow, one after the other. */

import { useRef } from 'preact/hooks';

import { NEW_STEPS, moved, referencesAt, withStep } from '../../workflow_draft.mjs';
import { known, t } from '../../strings.mjs';
import { Box, Choice } from '../fields.mjs';
import { Icon, IconButton, html } from '../ui.mjs';

/** @typedef {WorkflowDraft['steps'][number]} BuiltStep */
/** @template {BuiltStep} One @typedef {{step: One, tools: ToolView[], references: string[], onChange: (change: object) => void}} StepProperties */

/** @type {Record<string, string>} */
const ICONS = { prompt: 'message', tool: 'tool', input: 'question', approval: 'shield' };

/** @param {{draft: WorkflowDraft, tools: ToolView[], onChange: (steps: BuiltStep[]) => void}} properties */
export function Steps({ draft, tools, onChange }) {
  const { steps } = draft;
  const set = (/** @type {number} */ at, /** @type {object} */ change) =>
    onChange(steps.with(at, { ...steps[at], ...change }));
  return html`<fieldset class="builder-part">
    <legend>${t('builder.steps')}</legend>
    <p class="muted">${t('builder.stepsText')}</p>
    <ol class="builder-steps">
      ${steps.map(
        (step, at) =>
          html`<li key=${step.name} aria-label=${t('builder.step', { number: at + 1 })}>
            <header class="wrap">
              <${Icon} name=${ICONS[step.type] ?? 'workflow'} size=${16} /><strong
                >${t(`builder.type.${step.type}`)}</strong
              >
              <code>${step.name}</code>
              <span class="builder-actions wrap">
                ${
                  at > 0 &&
                  html`<${IconButton}
                    name="up"
                    label=${t('builder.stepUp', { name: step.name })}
                    size=${16}
                    onClick=${() => onChange(moved(steps, at, -1))} />`
                }
                <${IconButton}
                  name="trash"
                  label=${t('builder.removeStep', { name: step.name })}
                  size=${16}
                  onClick=${() => onChange(steps.toSpliced(at, 1))} />
              </span>
            </header>
            <${OneStep}
              step=${step}
              tools=${tools}
              references=${referencesAt(draft, at)}
              onChange=${(/** @type {object} */ change) => set(at, change)} />
          </li>`,
      )}
    </ol>
    <div class="wrap">
      ${Object.keys(NEW_STEPS).map(
        (type) =>
          html`<button
            key=${type}
            type="button"
            class="button small"
            onClick=${() => onChange(withStep(steps, type))}>
            <${Icon} name=${ICONS[type]} size=${15} />${known(`builder.add.${type}`, type)}
          </button>`,
      )}
    </div>
  </fieldset>`;
}

/** @param {StepProperties<BuiltStep>} properties */
function OneStep({ step, tools, references, onChange }) {
  switch (step.type) {
    case 'prompt':
      return html`<${Text}
          label=${t('builder.prompt')}
          value=${step.prompt}
          references=${references}
          onChange=${(/** @type {string} */ prompt) => onChange({ prompt })} />
        <${Box}
          label=${t('builder.promptTools')}
          value=${step.tools === null}
          onChange=${(/** @type {boolean} */ all) => onChange({ tools: all ? null : [] })} />`;
    case 'tool':
      return html`<${ToolStep} step=${step} tools=${tools} references=${references} onChange=${onChange} />`;
    default:
      return html`<${Text}
        label=${t(`builder.message.${step.type}`)}
        value=${step.message}
        references=${references}
        onChange=${(/** @type {string} */ message) => onChange({ message })} />`;
  }
}

/** @param {StepProperties<Extract<BuiltStep, {type: 'tool'}>>} properties */
function ToolStep({ step, tools, references, onChange }) {
  const chosen = tools.find((tool) => tool.name === step.tool);
  const { properties = {}, required = [] } = /** @type {Schema} */ (chosen?.input_schema ?? {});
  const needed = new Set(required);
  const names = [...new Set([...Object.keys(properties), ...Object.keys(step.arguments)])];
  const set = (/** @type {string} */ name, /** @type {unknown} */ value) =>
    onChange({
      arguments: Object.fromEntries(
        Object.entries({ ...step.arguments, [name]: value }).filter(([, given]) => given !== ''),
      ),
    });
  const offered = new Set([...tools.map((tool) => tool.name), ...(step.tool ? [step.tool] : [])]);
  return html`<${Choice}
      label=${t('builder.type.tool')}
      value=${step.tool}
      onChange=${(/** @type {string} */ tool) => onChange({ tool, arguments: {} })}
      options=${[['', t('form.choose')], ...[...offered].map((name) => [name, name])]}
      required />
    ${names.map(
      (name) =>
        html`<${Text}
          key=${name}
          label=${name}
          value=${written(step.arguments[name])}
          optional=${!needed.has(name)}
          references=${references}
          onChange=${(/** @type {string} */ value) => set(name, read(value, properties[name]))} />`,
    )}`;
}

const written = (/** @type {unknown} */ value) =>
  value === undefined ? '' : typeof value === 'string' ? value : JSON.stringify(value);

/**
 * A value that is not text is written as JSON; a reference stays text.
 *
 * @param {string} text
 * @param {Schema} schema
 */
function read(text, schema) {
  if (!text || !schema?.type || schema.type === 'string' || text.includes('{{')) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/**
 * A text with buttons that insert the values of form fields and earlier steps.
 *
 * @param {{label: string, value: string, references: string[], onChange: (text: string) => void, optional?: boolean}} properties
 */
export function Text({ label, value, references, onChange, optional = false }) {
  const area = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const insert = (/** @type {string} */ reference) => {
    const { selectionStart: from, selectionEnd: to } = /** @type {HTMLTextAreaElement} */ (area.current);
    onChange(value.slice(0, from) + reference + value.slice(to));
    area.current?.focus();
  };
  return html`<div class="form-field">
    <label
      ><span>${label}</span
      ><textarea
        ref=${area}
        rows="2"
        required=${!optional}
        value=${value}
        onInput=${(event) => onChange(event.target.value)} />
    </label>
    ${
      references.length > 0 &&
      html`<div class="builder-references wrap" role="group" aria-label=${t('builder.insert')}>
        ${references.map(
          (one) =>
            html`<button key=${one} type="button" class="chip" onClick=${() => insert(one)}>
              ${one.slice(2, -2)}
            </button>`,
        )}
      </div>`
    }
  </div>`;
}
