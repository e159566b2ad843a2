/** The form of one assistant, with its system prompt and the changes that a save would store. */

import { useEffect } from 'preact/hooks';

import { addressOf } from '../../router.mjs';
import { t } from '../../strings.mjs';
import { ModelButton } from '../models.mjs';
import { TextField, bound } from '../fields.mjs';
import { FormError, useAction, useKept } from '../requests.mjs';
import { LinkButton, html, useStore } from '../ui.mjs';
import { Changes } from './changes.mjs';
import { AssistantFiles } from './files.mjs';
import { Policy } from './policy.mjs';
import { PromptPreview } from './preview.mjs';
import { Terms } from './terms.mjs';
import { ToolChoice } from './tools.mjs';

/** Limits of a run: the field and the step of its number input. An empty limit does not apply. */
const LIMITS = /** @type {const} */ ([
  { name: 'run_timeout_s', min: 1, step: 1, required: true },
  { name: 'calls_per_reply', min: 1, step: 1, required: true },
  { name: 'max_calls_per_run', min: 1, step: 1 },
  { name: 'max_tokens_per_run', min: 1, step: 1 },
  { name: 'max_cost_usd', min: 0.0001, step: 'any' },
]);

/** The body of the request: the fields that a user sets, and the revision to replace. @param {Assistant} assistant */
const bodyOf = ({ id, ...draft }) => draft;

/** @param {{stored: Assistant, onStored: (assistant: Assistant) => void, onReload: () => void}} properties */
export function AssistantEditor({ stored, onStored, onReload }) {
  const { api, toasts } = useStore();
  /** @type {ReturnType<typeof useKept<Assistant>>} */
  const [written, setWritten] = useKept(`assistant ${stored.id ?? ''}`);
  const draft = written ?? stored;
  const { busy, error, failure, run } = useAction();
  const change = (/** @type {Partial<Assistant>} */ fields) =>
    setWritten((last) => ({ ...(last ?? stored), ...fields }));
  const of = bound(draft, change);
  const changed = JSON.stringify(draft) !== JSON.stringify(stored);
  const reload = () => (setWritten(null), onReload());
  useWarning(changed);
  const save = (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    return run(async () => {
      const { revision, ...fresh } = bodyOf(draft);
      const saved = stored.id
        ? await api.call('assistant.update', { assistant_id: stored.id }, { ...fresh, revision })
        : await api.call('assistant.create', {}, fresh);
      // What was written meanwhile is a change of what is stored now.
      setWritten((now) =>
        now === written || !stored.id ? null : now && { ...now, revision: saved.revision },
      );
      toasts.show(t('assistant.saved'), 'info');
      if (stored.id) onStored(saved);
      else location.hash = addressOf('assistants', saved.id);
    });
  };
  return html`<form class="assistant" onSubmit=${save}>
    <${TextField} label=${t('app.name')} ...${of('name')} maxlength="200" />
    <div class="form-field">
      <span>${t('run.model')}</span><${ModelButton} label=${t('run.model')} ...${of('model')} />
    </div>
    <${Prompt} draft=${draft} change=${change} />
    <${ToolChoice} ...${of('tools')} />
    <${Policy} ...${of('approval_policy')} />
    <${Terms} ...${of('approvals')} />
    <${LimitFields} ...${of('limits')} />
    <${AssistantFiles} ...${of('files')} />
    ${changed && stored.id && html`<${Changes} before=${stored} after=${draft} />`}
    <${FormError} error=${error}>
      ${failure?.code === 'conflict' && html`<${LinkButton} onClick=${reload}>${t('assistant.reload')}<//>`}
    <//>
    <div class="assistant-actions bar">
      <button class="button primary" disabled=${busy || !changed}>${t('app.save')}</button>
      ${
        stored.revision &&
        html`<span class="muted">${t('assistant.revision', { revision: stored.revision })}</span>`
      }
    </div>
  </form>`;
}

/** Ask for confirmation before the page closes with unsaved changes. @param {boolean} changed */
function useWarning(changed) {
  useEffect(() => {
    if (!changed) return undefined;
    const warn = (/** @type {Event} */ event) => event.preventDefault();
    addEventListener('beforeunload', warn);
    return () => removeEventListener('beforeunload', warn);
  }, [changed]);
}

function Prompt(
  /** @type {{draft: Assistant, change: (fields: Partial<Assistant>) => void}} */ { draft, change },
) {
  return html`<div class="assistant-prompt stack">
    <${TextField}
      label=${t('assistant.prompt')}
      value=${draft.system_prompt ?? ''}
      onChange=${(/** @type {string} */ text) => change({ system_prompt: text || null })}
      rows="10"
      disabled=${Boolean(draft.system_prompt_id)} />
    ${
      draft.system_prompt_id &&
      html`<p class="muted">
        ${t('assistant.storedPrompt', { id: draft.system_prompt_id })}
        <${LinkButton} onClick=${() => change({ system_prompt_id: null })}>${t('assistant.ownPrompt')}<//>
      </p>`
    }
    <${PromptPreview} draft=${bodyOf(draft)} />
  </div>`;
}

/** @param {{value: Assistant['limits'], onChange: (limits: Assistant['limits']) => void}} properties */
function LimitFields({ value: limits, onChange }) {
  return html`<fieldset class="assistant-part stack">
    <legend>${t('assistant.limits')}</legend>
    <div class="limit-fields">
      ${LIMITS.map(
        ({ name, min, step, ...more }) =>
          html`<${TextField}
            key=${name}
            label=${t(`assistant.limit.${name}`)}
            value=${limits[name] ?? ''}
            onChange=${(/** @type {string} */ limit) =>
              onChange({ ...limits, [name]: limit === '' ? null : Number(limit) })}
            type="number"
            min=${min}
            step=${step}
            required=${'required' in more && name in limits}
            placeholder=${'required' in more ? undefined : t('assistant.noLimit')} />`,
      )}
    </div>
  </fieldset>`;
}
