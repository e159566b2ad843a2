/** The assistants of the tenant: model, prompt, tools, rules and limits of their runs. */

import { useState } from 'preact/hooks';

import { AssistantEditor } from '../components/assistants/editor.mjs';
import { Revisions } from '../components/assistants/revisions.mjs';
import { FormError, Reading, useRead } from '../components/requests.mjs';
import { Frame } from '../components/view.mjs';
import { AddButton, SmallButton, html, useStore } from '../components/ui.mjs';
import { addressOf } from '../router.mjs';
import { t } from '../strings.mjs';

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
  const { api, conversations } = useStore();
  const read = useRead(() => api.assistants());
  const actions = html`<${AddButton} label=${t('assistant.new')} href=${addressOf('assistants', NEW)} />`;
  return html`<${Frame} title=${t('assistant.list')} actions=${actions}>
    <p class="muted">${t('assistant.intro')}</p>
    <${Reading} of=${read} />
    <ul class="assistants">
      ${read.value?.map(
        (item) =>
          html`<li class="wrap card" key=${item.id}>
            <a href=${addressOf('assistants', item.id)}>
              <strong>${item.name || item.id}</strong>
              <span class="muted text-s"
                >${[
                  item.model ?? t('models.default'),
                  t(item.tools.enabled ? 'assistant.withTools' : 'assistant.withoutTools'),
                ].join(' · ')}</span
              >
            </a>
            <${SmallButton} onClick=${() => conversations.begin(item.id)}>${t('assistant.begin')}<//>
          </li>`,
      )}
    </ul>
  <//>`;
}

function OneAssistant(/** @type {{id: string}} */ { id }) {
  const { api } = useStore();
  const isNew = id === NEW;
  const {
    value: stored,
    error,
    read,
    show,
  } = useRead(!isNew && (() => api.call('assistant.read', { assistant_id: id })), [id], isNew ? EMPTY : null);
  const [history, setHistory] = useState(false);
  return html`<${Frame} title=${stored?.name || t(isNew ? 'assistant.new' : 'assistant.title')}>
    <${FormError} error=${error} />
    ${
      stored &&
      html`<${AssistantEditor}
        key=${stored.revision ?? NEW}
        stored=${stored}
        onStored=${show}
        onReload=${read} />`
    }
    ${
      stored?.id &&
      html`<details class="revisions" onToggle=${(event) => setHistory(event.currentTarget.open)}>
        <summary>${t('revision.title')}</summary>
        ${history && html`<${Revisions} id=${stored.id} current=${stored.revision} onRestored=${show} />`}
      </details>`
    }
  <//>`;
}
