/** The form of one assistant, with its system prompt and the changes that a save would store. */

import { useEffect, useState } from 'preact/hooks';

import { addressOf } from '../../router.mjs';
import { explain, t } from '../../strings.mjs';
import { ModelButton } from '../models.mjs';
import { html, useStore } from '../ui.mjs';
import { Changes } from './changes.mjs';
import { AssistantFiles } from './files.mjs';
import { Policy } from './policy.mjs';
import { PromptPreview } from './preview.mjs';
import { Terms } from './terms.mjs';
import { ToolChoice } from './tools.mjs';

/** Limits of a run: the field and the step of its number input. An empty limit does not apply. */
const LIMITS = [
  { name: 'run_timeout_s', min: 1, step: 1, required: true },
  { name: 'calls_per_reply', min: 1, step: 1, required: true },
  { name: 'max_calls_per_run', min: 1, step: 1 },
  { name: 'max_tokens_per_run', min: 1, step: 1 },
  { name: 'max_cost_usd', min: 0.0001, step: 'any' },
];

/**
 * The body of the request: the fields that a user sets, and the revision to replace.
 *
 * @param {{id: string} & Record<string, unknown>} options
 */
const bodyOf = ({ id, ...draft }) => draft;

/** @param {{stored: Assistant | null, onStored: (assistant: Assistant) => void, onReload: () => void}} properties */
export function AssistantEditor({ stored, onStored, onReload }) {
  const store = useStore();
  const [draft, setDraft] = useState(stored);
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const [busy, setBusy] = useState(false);
  const change = (fields) => setDraft((last) => ({ ...last, ...fields }));
  const changed = JSON.stringify(draft) !== JSON.stringify(stored);
  useWarning(changed);
  const save = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const { revision, ...fresh } = bodyOf(draft);
      const saved = stored.id
        ? await store.api.replaceAssistant(stored.id, { ...fresh, revision })
        : await store.api.createAssistant(fresh);
      store.toast(t('assistant.saved'), 'info');
      if (stored.id) onStored(saved);
      else location.hash = addressOf('assistants', saved.id);
    } catch (failure) {
      setError(failure);
    }
    setBusy(false);
  };
  return html`<form class="assistant" onSubmit=${save}>
    <label class="form-field"
      ><span>${t('assistant.name')}</span
      ><input maxlength="200" value=${draft.name} onInput=${(event) => change({ name: event.target.value })}
    /></label>
    <div class="form-field">
      <span>${t('run.model')}</span
      ><${ModelButton}
        value=${draft.model}
        label=${t('run.model')}
        onChange=${(model) => change({ model })}
      />
    </div>
    <${Prompt} draft=${draft} change=${change} />
    <${ToolChoice}
      tools=${draft.tools}
      onChange=${(tools) => change({ tools: { ...draft.tools, ...tools } })}
    />
    <${Policy} rules=${draft.approval_policy} onChange=${(rules) => change({ approval_policy: rules })} />
    <${Terms} terms=${draft.approvals} onChange=${(approvals) => change({ approvals })} />
    <${LimitFields}
      limits=${draft.limits}
      onChange=${(limits) => change({ limits: { ...draft.limits, ...limits } })}
    />
    <${AssistantFiles} files=${draft.files} onChange=${(files) => change({ files })} />
    ${changed && stored.id && html`<${Changes} before=${stored} after=${draft} />`}
    ${error && html`<p class="form-error" role="alert">${explain(error)} ${error.code === 'conflict' && html`<button type="button" class="link" onClick=${onReload}>${t('assistant.reload')}</button>`}</p>`}
    <div class="assistant-actions">
      <button class="button primary" disabled=${busy || !changed}>${t('assistant.save')}</button>
      ${stored.revision && html`<span class="muted">${t('assistant.revision', { revision: stored.revision })}</span>`}
    </div>
  </form>`;
}

/** Ask for confirmation before the page closes with unsaved changes. @param {boolean} changed */
function useWarning(changed) {
  useEffect(() => {
    if (!changed) return undefined;
    const warn = (event) => event.preventDefault();
    addEventListener('beforeunload', warn);
    return () => removeEventListener('beforeunload', warn);
  }, [changed]);
}

function Prompt(/** @type {{draft: Assistant, change: (change: object) => void}} */ { draft, change }) {
  return html`<div class="assistant-prompt">
    <label class="form-field"
      ><span>${t('assistant.prompt')}</span>
      <textarea
        rows="10"
        value=${draft.system_prompt ?? ''}
        disabled=${Boolean(draft.system_prompt_id)}
        onInput=${(event) => change({ system_prompt: event.target.value || null })}
      />
    </label>
    ${draft.system_prompt_id && html`<p class="muted">${t('assistant.storedPrompt', { id: draft.system_prompt_id })} <button type="button" class="link" onClick=${() => change({ system_prompt_id: null })}>${t('assistant.ownPrompt')}</button></p>`}
    <${PromptPreview} draft=${bodyOf(draft)} />
  </div>`;
}

/** @param {{limits: Assistant['limits'], onChange: () => void}} properties */
function LimitFields({ limits, onChange }) {
  return html`<fieldset class="assistant-part">
    <legend>${t('assistant.limits')}</legend>
    <div class="limit-fields">
      ${LIMITS.map(
        ({ name, min, step, required }) =>
          html`<label key=${name} class="form-field"
            ><span>${t(`assistant.limit.${name}`)}</span>
            <input
              type="number"
              min=${min}
              step=${step}
              required=${required && name in limits}
              placeholder=${required ? undefined : t('assistant.noLimit')}
              value=${limits[name] ?? ''}
              onInput=${(event) => onChange({ [name]: event.target.value === '' ? null : Number(event.target.value) })}
            />
          </label>`,
      )}
    </div>
  </fieldset>`;
}
