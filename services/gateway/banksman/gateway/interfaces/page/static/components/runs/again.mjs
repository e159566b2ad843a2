/** Send the message of a run again with another model, at the same place of the conversation. */

import { useEffect, useState } from 'preact/hooks';

import { addressOf } from '../../router.mjs';
import { repetitionOf } from '../../runs.mjs';
import { explain, t } from '../../strings.mjs';
import { ModelButton } from '../models.mjs';
import { Dialog, html, useStore } from '../ui.mjs';

/** @param {{run: Run, steps: Step[], onClose: () => void}} properties */
export function RunAgain({ run, steps, onClose }) {
  const store = useStore();
  const [model, setModel] = useState(run.model ?? '');
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const [busy, setBusy] = useState(false);
  const [repetition, setRepetition] = useState(null);
  useEffect(() => {
    const first = steps.find((step) => step.kind === 'model');
    if (first)
      store.api.step(run.run_id, first.step_id).then(
        ({ request }) => setRepetition(repetitionOf(request, run.message_id)),
        (failure) => setError(explain(failure)),
      );
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const started = await store.api.startRun(run.conversation_id, {
        ...repetition,
        overrides: { model: model.trim() },
      });
      store.opened.showNewest(run.conversation_id);
      onClose();
      location.hash = addressOf('runs', run.run_id, 'with', started.run_id);
    } catch (failure) {
      setError(explain(failure));
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${t('run.againTitle')} onClose=${onClose}>
    <form class="dialog-body" onSubmit=${submit}>
      <p>${t('run.againText')}</p>
      <p class="form-field">
        <span>${t('run.model')}</span
        ><${ModelButton} value=${model} onChange=${setModel} label=${t('run.model')} optional=${false} />
      </p>
      ${error && html`<p class="form-error" role="alert">${error}</p>`}
      <div class="dialog-actions">
        <button type="button" class="button" onClick=${onClose}>${t('app.cancel')}</button>
        <button class="button primary" disabled=${busy || !repetition || !model.trim()}>
          ${t('run.start')}
        </button>
      </div>
    </form>
  <//>`;
}
