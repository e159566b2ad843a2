/** The stored revisions of an assistant: who changed it when, the difference of any two, and a way back. */

import { useEffect, useState } from 'preact/hooks';

import { explain, t } from '../../strings.mjs';
import { formatWhen } from '../../text.mjs';
import { html, useStore } from '../ui.mjs';
import { Changes } from './changes.mjs';

/** @param {{id: string, current: number, onRestored: (stored: object) => void}} properties */
export function Revisions({ id, current, onRestored }) {
  const store = useStore();
  const [items, setItems] = useState(/** @type {Item<'assistant.revisions'>[] | null} */ (null));
  const [pair, setPair] = useState(/** @type {{before: number, after: number} | null} */ (null));
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const attempt = (action) => action().catch((failure) => setError(explain(failure)));
  const read = () =>
    attempt(async () => {
      const found = await store.api.assistantRevisions(id);
      setItems(found);
      setPair({ after: found[0].revision, before: (found[1] ?? found[0]).revision });
    });
  useEffect(() => void read(), [current]);
  const restore = () =>
    attempt(async () => {
      const stored = await store.api.restoreAssistant(id, pair.before);
      store.toast(t('revision.restored', { revision: pair.before }), 'info');
      onRestored(stored);
    });
  if (error) return html`<p class="form-error" role="alert">${error}</p>`;
  if (!items) return html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`;
  if (items.length < 2) return html`<p class="muted">${t('revision.none')}</p>`;
  const choice = (name) =>
    html`<label class="form-field"
      ><span>${t(`revision.${name}`)}</span>
      <select
        value=${String(pair[name])}
        onChange=${(event) => setPair({ ...pair, [name]: Number(event.target.value) })}
      >
        ${items.map((one) => html`<option key=${one.revision} value=${String(one.revision)}>${nameOf(one)}</option>`)}
      </select></label
    >`;
  return html`<div class="revision-choice">${choice('before')}${choice('after')}</div>
    <${Difference} id=${id} ...${pair} />
    <button type="button" class="button" disabled=${pair.before === items[0].revision} onClick=${restore}>
      ${t('revision.restore', { revision: pair.before })}
    </button>`;
}

/** @param {{revision: number, at: number, by: string, current: boolean}} options */
function nameOf({ revision, at, by, current }) {
  return [t('assistant.revision', { revision }), at && formatWhen(at), by, current && t('revision.current')]
    .filter(Boolean)
    .join(' · ');
}

/** @param {{id: string, before: string | null | undefined, after: string | null}} properties */
function Difference({ id, before, after }) {
  const store = useStore();
  const [read, setRead] = useState(null);
  useEffect(() => {
    let shown = true;
    Promise.all([before, after].map((revision) => store.api.assistantRevision(id, revision))).then(
      (found) => shown && setRead(found),
      (failure) => store.toast(explain(failure)),
    );
    return () => (shown = false);
  }, [before, after]);
  return read && html`<${Changes} before=${read[0]} after=${read[1]} title=${t('revision.difference')} />`;
}
