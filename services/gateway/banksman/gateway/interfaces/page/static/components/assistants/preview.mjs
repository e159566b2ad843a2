/** The whole system prompt of an assistant's runs: its own text with the tools and instructions. */

import { useEffect, useState } from 'preact/hooks';

import { formatNumber, t } from '../../strings.mjs';
import { FormError, useRead } from '../requests.mjs';
import { html, useStore } from '../ui.mjs';

const DELAY_MS = 400;

/** @param {{draft: Assistant}} properties the assistant as it would be stored */
export function PromptPreview({ draft }) {
  const { api } = useStore();
  const [open, setOpen] = useState(false);
  const { revision, ...body } = draft;
  const key = useLater(JSON.stringify([open, body.system_prompt, body.system_prompt_id, body.tools]));
  const { value: preview, error } = useRead(open && (() => api.call('assistant.preview', {}, body)), [key]);
  return html`<details class="folded" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary><span>${t('assistant.preview')}</span></summary>
    <${FormError} error=${error} />
    ${
      preview &&
      html`<p class="muted">
          ${t('assistant.previewFacts', {
            tokens: formatNumber(preview.estimated_tokens),
            tools: preview.tools.join(', ') || t('app.none'),
          })}
          ${
            preview.dropped_tools.length > 0 &&
            t('assistant.dropped', { tools: preview.dropped_tools.join(', ') })
          }
        </p>
        <div class="step-pre"><pre tabindex="0">${preview.content}</pre></div>`
    }
  </details>`;
}

/** A value that is passed on once it has not changed for a while. @param {string} value */
function useLater(value) {
  const [later, setLater] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setLater(value), DELAY_MS);
    return () => clearTimeout(timer);
  }, [value]);
  return later;
}
