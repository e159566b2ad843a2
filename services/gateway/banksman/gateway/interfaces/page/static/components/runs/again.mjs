/** Send the message of a run again with another model, at the same place of the conversation. */

import { useState } from 'preact/hooks';

import { addressOf } from '../../router.mjs';
import { repetitionOf } from '../../runs.mjs';
import { t } from '../../strings.mjs';
import { ModelButton } from '../models.mjs';
import { FormDialog } from '../fields.mjs';
import { FormError, useRead } from '../requests.mjs';
import { html, useStore } from '../ui.mjs';

/** @param {{run: StoredRun, steps: Step[], onClose: () => void}} properties */
export function RunAgain({ run, steps, onClose }) {
  const { api, opened } = useStore();
  const [model, setModel] = useState(run.model ?? '');
  const first = steps.find((step) => step.kind === 'model');
  const { value: step, error } = useRead(
    first && (() => api.call('step.read', { run_id: run.run_id, step_id: first.step_id })),
  );
  const submit = async () => {
    const started = await api.call(
      'chat.send',
      { conversation_id: run.conversation_id },
      {
        ...repetitionOf(
          /** @type {Parameters<typeof repetitionOf>[0]} */ (step?.request),
          run.message_id ?? '',
        ),
        overrides: { model: model.trim() },
      },
    );
    opened.showNewest(run.conversation_id);
    onClose();
    location.hash = addressOf('runs', run.run_id, 'with', started.run_id);
  };
  return html`<${FormDialog}
    title=${t('run.againTitle')}
    label=${t('workflow.start')}
    disabled=${!step || !model.trim()}
    onSubmit=${submit}
    onClose=${onClose}>
    <p>${t('run.againText')}</p>
    <p class="form-field">
      <span>${t('run.model')}</span
      ><${ModelButton} value=${model} onChange=${setModel} label=${t('run.model')} optional=${false} />
    </p>
    <${FormError} error=${error} />
  <//>`;
}
