/** Build a workflow without code: its name, the form that starts it, its steps, and its result. */

import { useEffect, useState } from 'preact/hooks';

import { addressOf } from '../../router.mjs';
import { explain, t } from '../../strings.mjs';
import { EMPTY, bodyOf, nameOf, referencesAt } from '../../workflow_draft.mjs';
import { Dialog, html, useStore } from '../ui.mjs';
import { Fields } from './fields.mjs';
import { Steps, Text } from './steps.mjs';

/** @param {{stored: object | null, onStored: (definition: object) => void}} properties `stored` is a draft; null for a new one */
export function WorkflowBuilder({ stored, onStored }) {
  const store = useStore();
  const [draft, setDraft] = useState(stored ?? EMPTY);
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const [busy, setBusy] = useState(false);
  const [deleting, setDeleting] = useState(false);
  const tools = useTools(store);
  const change = (fields) => setDraft((last) => ({ ...last, ...fields }));
  const attempt = async (action) => {
    setBusy(true);
    setError(null);
    try {
      await action();
    } catch (failure) {
      setError(explain(failure));
    }
    setBusy(false);
  };
  const save = (event) => {
    event.preventDefault();
    return attempt(async () => {
      const definition = draft.name
        ? await store.api.replaceWorkflow(draft.name, bodyOf(draft))
        : await store.api.createWorkflow({ name: nameOf(draft.title), ...bodyOf(draft) });
      store.toast(t('builder.saved'), 'info');
      onStored(definition);
    });
  };
  const remove = () =>
    attempt(async () => {
      await store.api.deleteWorkflow(draft.name);
      location.hash = addressOf('workflows');
    });
  return html`<form class="builder" onSubmit=${save}>
    <label class="form-field"
      ><span>${t('builder.title')}</span
      ><input
        required
        maxlength="200"
        pattern=".*[A-Za-z0-9].*"
        value=${draft.title}
        onInput=${(event) => change({ title: event.target.value })}
    /></label>
    <label class="form-field"
      ><span>${t('builder.description')}</span
      ><textarea
        rows="2"
        maxlength="4000"
        value=${draft.description}
        onInput=${(event) => change({ description: event.target.value })}
      />
    </label>
    <label class="form-field"
      ><span>${t('builder.category')}</span
      ><input
        pattern="[\\w\\-]+"
        maxlength="64"
        value=${draft.category}
        onInput=${(event) => change({ category: event.target.value })}
    /></label>
    <${Fields} fields=${draft.fields} onChange=${(fields) => change({ fields })} />
    <${Steps} draft=${draft} tools=${tools} onChange=${(steps) => change({ steps })} />
    <fieldset class="builder-part">
      <legend>${t('builder.end')}</legend>
      <${Text}
        label=${t('builder.result')}
        value=${draft.result}
        optional
        references=${referencesAt(draft, draft.steps.length)}
        onChange=${(result) => change({ result })}
      />
    </fieldset>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    <div class="builder-actions">
      <button class="button primary" disabled=${busy || !draft.steps.length}>${t('builder.save')}</button>
      ${draft.name && html`<button type="button" class="button danger" disabled=${busy} onClick=${() => setDeleting(true)}>${t('builder.delete')}</button>`}
      ${!draft.steps.length && html`<span class="muted">${t('builder.noSteps')}</span>`}
    </div>
    ${
      deleting &&
      html`<${Dialog} title=${t('builder.delete')} onClose=${() => setDeleting(false)}>
        <div class="dialog-body">
          <p>${t('builder.deleteQuestion', { title: draft.title || draft.name })}</p>
          <div class="dialog-actions">
            <button type="button" class="button" onClick=${() => setDeleting(false)}>
              ${t('app.cancel')}
            </button>
            <button type="button" class="button danger" onClick=${remove}>${t('builder.delete')}</button>
          </div>
        </div>
      <//>`
    }
  </form>`;
}

/** The tools that a step may call; none for a user without the right to list tools. @param {Store} store */
function useTools(store) {
  const [tools, setTools] = useState(/** @type {ToolView[]} */ ([]));
  useEffect(() => void store.api.tools().then(setTools, () => {}), []);
  return tools;
}
