/** The assistants of the tenant: model, prompt, tools, rules and limits of their runs. */

import { useEffect, useState } from 'preact/hooks';

import { AssistantEditor } from '../components/assistants/editor.mjs';
import { Revisions } from '../components/assistants/revisions.mjs';
import { Frame } from '../components/view.mjs';
import { Icon, html, useStore } from '../components/ui.mjs';
import { addressOf } from '../router.mjs';
import { explain, t } from '../strings.mjs';

const NEW = 'new';
/** What the gateway completes. */
const EMPTY = /** @type {Assistant} */ (
  /** @type {unknown} */ ({
    name: '',
    model: null,
    system_prompt: '',
    tools: { enabled: true },
    limits: {},
    approval_policy: [],
    variables: {},
    files: [],
  })
);

/** @param {{path: string[]}} properties empty for the list, the id of an assistant, or `new` */
export default function AssistantsView({ path: [id] }) {
  return id ? html`<${OneAssistant} key=${id} id=${id} />` : html`<${AssistantList} />`;
}

function AssistantList() {
  const store = useStore();
  const [items, setItems] = useState(/** @type {Assistant[] | null} */ (null));
  const [error, setError] = useState(/** @type {string | null} */ (null));
  useEffect(() => void store.api.assistants().then(setItems, (failure) => setError(explain(failure))), []);
  const actions = html`<a class="button" href=${addressOf('assistants', NEW)}
    ><${Icon} name="plus" size=${16} />${t('assistant.new')}</a
  >`;
  return html`<${Frame} title=${t('assistant.list')} actions=${actions}>
    <p class="muted">${t('assistant.intro')}</p>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${!items && !error && html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`}
    <ul class="assistants">
      ${items?.map(
        (item) =>
          html`<li key=${item.id}>
            <a href=${addressOf('assistants', item.id)}>
              <strong>${item.name || item.id}</strong>
              <span class="muted"
                >${[item.model ?? t('models.default'), t(item.tools.enabled ? 'assistant.withTools' : 'assistant.withoutTools')].join(' · ')}</span
              >
            </a>
            <button type="button" class="button small" onClick=${() => store.begin(item.id)}>
              ${t('assistant.begin')}
            </button>
          </li>`,
      )}
    </ul>
  <//>`;
}

function OneAssistant(/** @type {{id: string}} */ { id }) {
  const store = useStore();
  const [stored, setStored] = useState(/** @type {Assistant | null} */ (id === NEW ? EMPTY : null));
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const [history, setHistory] = useState(false);
  const read = () => store.api.assistant(id).then(setStored, (failure) => setError(explain(failure)));
  useEffect(() => void (id !== NEW && read()), [id]);
  return html`<${Frame} title=${stored?.name || t(id === NEW ? 'assistant.new' : 'assistant.title')}>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${stored && html`<${AssistantEditor} key=${stored.revision ?? NEW} stored=${stored} onStored=${setStored} onReload=${read} />`}
    ${
      stored?.id &&
      html`<details class="revisions" onToggle=${(event) => setHistory(event.currentTarget.open)}>
        <summary>${t('revision.title')}</summary>
        ${history && html`<${Revisions} id=${stored.id} current=${stored.revision} onRestored=${setStored} />`}
      </details>`
    }
  <//>`;
}
