/** The stored revisions of an assistant: who changed it when, the difference of any two, and a way back. */

import { useState } from 'preact/hooks';

import { t } from '../../strings.mjs';
import { formatWhen } from '../../text.mjs';
import { Choice } from '../fields.mjs';
import { FormError, useRead } from '../requests.mjs';
import { Loading, html, useStore } from '../ui.mjs';
import { Changes } from './changes.mjs';

/** @param {{id: string, current: number, onRestored: (stored: Assistant) => void}} properties */
export function Revisions({ id, current, onRestored }) {
  const { api, toasts } = useStore();
  const {
    value: items,
    error,
    fail,
  } = useRead(() => api.items('assistant.revisions', { assistant_id: id }), [current]);
  const [chosen, setChosen] = useState(/** @type {{before?: number, after?: number}} */ ({}));
  if (error) return html`<${FormError} error=${error} />`;
  if (!items) return html`<${Loading} />`;
  if (items.length < 2) return html`<p class="muted">${t('revision.none')}</p>`;
  const pair = { after: items[0].revision, before: items[1].revision, ...chosen };
  const restore = () =>
    api.call('assistant.restore', { assistant_id: id, revision: pair.before }).then((stored) => {
      toasts.show(t('revision.restored', { revision: pair.before }), 'info');
      setChosen({});
      onRestored(stored);
    }, fail);
  const choice = (/** @type {'before' | 'after'} */ name) =>
    html`<${Choice}
      label=${t(`revision.${name}`)}
      value=${String(pair[name])}
      onChange=${(/** @type {string} */ revision) => setChosen({ ...chosen, [name]: Number(revision) })}
      options=${items.map((one) => [String(one.revision), nameOf(one)])} />`;
  return html`<div class="revision-choice">${choice('before')}${choice('after')}</div>
    <${Difference} id=${id} ...${pair} />
    <button type="button" class="button" disabled=${pair.before === items[0].revision} onClick=${restore}>
      ${t('revision.restore', { revision: pair.before })}
    </button>`;
}

/** @param {Item<'assistant.revisions'>} revision */
function nameOf({ revision, at, by, current }) {
  return [t('assistant.revision', { revision }), at && formatWhen(at), by, current && t('revision.current')]
    .filter(Boolean)
    .join(' · ');
}

/** @param {{id: string, before: number, after: number}} properties */
function Difference({ id, before, after }) {
  const { api } = useStore();
  const read = (/** @type {number} */ revision) =>
    api.call('assistant.revision', { assistant_id: id, revision });
  const { value: pair, error } = useRead(() => Promise.all([before, after].map(read)), [before, after]);
  if (!pair) return html`<${FormError} error=${error} />`;
  return html`<${Changes} before=${pair[0]} after=${pair[1]} title=${t('revision.difference')} />`;
}
