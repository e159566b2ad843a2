/** Choose a model by provider, price and context. */

import { useLayoutEffect, useRef, useState } from 'preact/hooks';

import { formatNumber, t } from '../strings.mjs';
import { Reading, useRead } from './requests.mjs';
import { Dialog, Icon, html, useStore } from './ui.mjs';

/**
 * A button with the name of the chosen model, which opens the list.
 *
 * @param {{value: string | null, onChange: (model: string | null) => void, label?: string, optional?: boolean} & Json} properties `null` is the
 *   model of the assistant
 */
export function ModelButton({ value, onChange, label = t('models.choose'), optional = true, ...rest }) {
  const [open, setOpen] = useState(false);
  const choose = (/** @type {string | null} */ model) => {
    setOpen(false);
    onChange(model);
  };
  return html`<button
      type="button"
      class="toggle model-button"
      aria-haspopup="dialog"
      aria-label=${`${label}: ${value ?? t('models.default')}`}
      title=${label}
      onClick=${() => setOpen(true)}
      ...${rest}>
      <${Icon} name="model" size=${16} /><span
        >${value ? value.slice(value.indexOf(':') + 1) : t('models.default')}</span
      >
    </button>
    ${
      open &&
      html`<${ModelDialog}
        value=${value}
        optional=${optional}
        onChoose=${choose}
        onClose=${() => setOpen(false)} />`
    }`;
}

/** @param {{value: string | null, optional: boolean, onChoose: (name: string | null) => void, onClose: () => void}} properties */
function ModelDialog({ value, optional, onChoose, onClose }) {
  const { api } = useStore();
  const read = useRead(() => api.items('model.list'));
  const models = read.value;
  const [query, setQuery] = useState('');
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  useLayoutEffect(() => field.current?.focus(), []);
  const wanted = query.trim().toLowerCase();
  const shown = (models ?? []).filter((model) => model.id.toLowerCase().includes(wanted));
  const typed =
    /^[a-z]+:\S+$/.test(query.trim()) && !shown.some((model) => model.id === query.trim())
      ? query.trim()
      : null;
  return html`<${Dialog} title=${t('models.title')} onClose=${onClose} wide>
    <div class="dialog-body models">
      <input
        ref=${field}
        type="search"
        aria-label=${t('models.find')}
        placeholder=${t('models.find')}
        value=${query}
        onInput=${(event) => setQuery(event.target.value)} />
      <${Reading} of=${read} />
      <ul>
        ${
          optional &&
          !wanted &&
          html`<li>
            <button type="button" aria-pressed=${value === null} onClick=${() => onChoose(null)}>
              <strong>${t('models.default')}</strong
              ><span class="muted text-s">${t('models.defaultText')}</span>
            </button>
          </li>`
        }
        ${shown.map(
          (model) =>
            html`<li key=${model.id}>
              <${ModelRow} model=${model} chosen=${model.id === value} onChoose=${onChoose} />
            </li>`,
        )}
        ${
          typed &&
          html`<li>
            <button type="button" onClick=${() => onChoose(typed)}>
              <strong>${typed}</strong><span class="muted text-s">${t('models.unlisted')}</span>
            </button>
          </li>`
        }
      </ul>
      ${models && !shown.length && !typed && html`<p class="empty">${t('models.none')}</p>`}
    </div>
  <//>`;
}

/** @param {{model: ModelView, chosen: boolean, onChoose: (name: string) => void}} properties */
function ModelRow({ model, chosen, onChoose }) {
  const { input_usd: input, output_usd: output, context_tokens: context } = model;
  const price =
    input === null || output === null
      ? t('models.noPrice')
      : t('models.price', { input: dollars(input), output: dollars(output) });
  return html`<button type="button" aria-pressed=${chosen} onClick=${() => onChoose(model.id)}>
    <strong>${model.name}</strong>
    <span class="badge">${model.provider}</span>
    <span class="muted text-s"
      >${[price, context ? t('models.context', { tokens: formatNumber(context) }) : '']
        .filter(Boolean)
        .join(' · ')}</span
    >
  </button>`;
}

const dollars = (/** @type {number} */ value) => `$${formatNumber(value)}`;
