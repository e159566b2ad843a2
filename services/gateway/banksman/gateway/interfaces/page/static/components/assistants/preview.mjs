/** The whole system prompt of an assistant's runs: its own text with the tools and instructions. */

import { useEffect, useState } from 'preact/hooks';

import { explain, formatNumber, t } from '../../strings.mjs';
import { html, useStore } from '../ui.mjs';

const DELAY_MS = 400;

/** @param {{draft: Assistant}} properties the assistant as it would be stored */
export function PromptPreview({ draft }) {
  const store = useStore();
  const [open, setOpen] = useState(false);
  const [shown, setShown] = useState(
    /** @type {{preview: Replies['assistant.preview'] | null, error: string | null}} */ ({
      preview: null,
      error: null,
    }),
  );
  const { revision, ...body } = draft;
  const key = JSON.stringify([body.system_prompt, body.system_prompt_id, body.tools]);
  useEffect(() => {
    if (!open) return undefined;
    let current = true;
    const timer = setTimeout(() => {
      store.api.previewAssistant(body).then(
        (preview) => current && setShown({ preview, error: null }),
        (failure) => current && setShown((last) => ({ ...last, error: explain(failure) })),
      );
    }, DELAY_MS);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [open, key]);
  const { preview, error } = shown;
  return html`<details class="folded" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary><span>${t('assistant.preview')}</span></summary>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${
      preview &&
      html`<p class="muted">
          ${t('assistant.previewFacts', { tokens: formatNumber(preview.estimated_tokens), tools: preview.tools.join(', ') || t('app.none') })}
          ${preview.dropped_tools.length > 0 && t('assistant.dropped', { tools: preview.dropped_tools.join(', ') })}
        </p>
        <div class="step-pre"><pre tabindex="0">${preview.content}</pre></div>`
    }
  </details>`;
}
