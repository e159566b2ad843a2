/** Build a workflow without code: its name, the form that starts it, its steps, and its result. */

import { useState } from 'preact/hooks';

import { addressOf } from '../../router.mjs';
import { t } from '../../strings.mjs';
import { EMPTY, bodyOf, nameOf, referencesAt } from '../../workflow_draft.mjs';
import { FormDialog, TextField, bound } from '../fields.mjs';
import { FormError, useAction, useRead } from '../requests.mjs';
import { html, useStore } from '../ui.mjs';
import { Fields } from './fields.mjs';
import { Steps, Text } from './steps.mjs';

/** @param {{stored: WorkflowDraft | null, onStored: (definition: Workflow) => void}} properties `stored` is null for a new one */
export function WorkflowBuilder({ stored, onStored }) {
  const { api, toasts } = useStore();
  const [draft, setDraft] = useState(stored ?? EMPTY);
  const { busy, error, run } = useAction();
  const [deleting, setDeleting] = useState(false);
  // A user without the right to list tools gets none.
  const { value: tools } = useRead(() => api.items('tool.list'));
  const change = (/** @type {Partial<WorkflowDraft>} */ fields) =>
    setDraft((last) => ({ ...last, ...fields }));
  const of = bound(draft, change);
  const save = (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    return run(async () => {
      const definition = draft.name
        ? await api.call('workflow.update', { name: draft.name }, bodyOf(draft))
        : await api.call('workflow.create', {}, { name: nameOf(draft.title), ...bodyOf(draft) });
      toasts.show(t('builder.saved'), 'info');
      onStored(definition);
    });
  };
  const remove = async () => {
    await api.call('workflow.delete', { name: draft.name });
    location.hash = addressOf('workflows');
  };
  return html`<form class="builder" onSubmit=${save}>
    <${TextField}
      label=${t('app.name')}
      ...${of('title')}
      required
      maxlength="200"
      pattern=".*[A-Za-z0-9].*" />
    <${TextField} label=${t('builder.description')} ...${of('description')} rows="2" maxlength="4000" />
    <${TextField} label=${t('builder.category')} ...${of('category')} pattern="[\\w\\-]+" maxlength="64" />
    <${Fields} ...${of('fields')} />
    <${Steps} draft=${draft} tools=${tools ?? []} ...${of('steps')} />
    <fieldset class="builder-part">
      <legend>${t('builder.end')}</legend>
      <${Text}
        label=${t('builder.result')}
        ...${of('result')}
        optional
        references=${referencesAt(draft, draft.steps.length)} />
    </fieldset>
    <${FormError} error=${error} />
    <div class="wrap">
      <button class="button primary" disabled=${busy || !draft.steps.length}>${t('app.save')}</button>
      ${
        draft.name &&
        html`<button type="button" class="button danger" disabled=${busy} onClick=${() => setDeleting(true)}>
          ${t('builder.delete')}
        </button>`
      }
      ${!draft.steps.length && html`<span class="muted">${t('builder.noSteps')}</span>`}
    </div>
    ${
      deleting &&
      html`<${FormDialog}
        title=${t('builder.delete')}
        label=${t('builder.delete')}
        danger
        onSubmit=${remove}
        onClose=${() => setDeleting(false)}>
        <p>${t('builder.deleteQuestion', { title: draft.title || draft.name })}</p>
      <//>`
    }
  </form>`;
}
