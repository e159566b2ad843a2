/** The title and the actions of the open conversation. */

import { useState } from 'preact/hooks';

import { costOf } from '../events.mjs';
import { t } from '../strings.mjs';
import { formatCost } from '../text.mjs';
import { useRead } from './requests.mjs';
import { ConversationDialog, Lock, menuOf } from './sidebar.mjs';
import { Action, ListButton, Menu, html, useStore } from './ui.mjs';

export function Header() {
  const store = useStore();
  const conversation = store.opened.current.value;
  const [dialog, setDialog] = useState(/** @type {string | null} */ (null));
  const title = titleOf(store, conversation);
  const cost = conversation && !conversation.earlier ? costOf(conversation) : 0;
  const listed = [...store.list.pinned.value, ...store.list.state.value.items].find(
    (item) => item.conversation_id === conversation?.id,
  );
  return html`<header class="header bar">
    <${ListButton} />
    <div class="header-title grow">
      <h1 class="grow">${title}</h1>
      ${conversation && html`<${Limited} id=${conversation.id} listed=${listed} />`}
      ${
        cost > 0 &&
        html`<small title=${t('header.costTitle')}>${t('header.cost', { cost: formatCost(cost) })}</small>`
      }
      ${
        listed?.assistant && listed.assistant !== 'default' && html`<${AssistantOf} id=${listed.assistant} />`
      }
    </div>
    <div class="header-actions bar">
      <${Action}
        icon="details"
        text=${t('header.details')}
        aria-pressed=${store.settings.details.value}
        title=${t('header.detailsTitle')}
        onClick=${() => store.settings.toggleDetails()} />
      ${
        conversation &&
        html`<${Action}
            icon="folder"
            text=${t('header.files')}
            aria-pressed=${store.navigation.panel.value === 'files'}
            title=${t('header.filesTitle')}
            onClick=${() => togglePanel(store)} />
          <${Menu}
            label=${t('conversation.actions')}
            items=${menuOf(store, listed ?? { conversation_id: conversation.id }, setDialog)} />`
      }
    </div>
    ${
      dialog &&
      html`<${ConversationDialog}
        dialog=${dialog}
        item=${{ ...listed, conversation_id: conversation?.id, title }}
        onClose=${() => setDialog(null)} />`
    }
  </header>`;
}

/**
 * That only some people see a conversation. One that is not in the list is read.
 *
 * @param {{id: string, listed: {people?: string[] | null} | undefined}} properties
 */
function Limited({ id, listed }) {
  const { api } = useStore();
  const { value } = useRead(!listed && (() => api.call('conversation.read', { conversation_id: id })), [id]);
  const people = (listed ?? value)?.people;
  if (!people) return null;
  return html`<small class="limited"
    ><${Lock} people=${people} /> ${t('share.limited', { count: people.length })}</small
  >`;
}

/** The name of the assistant of a conversation. @param {{id: string}} properties */
function AssistantOf({ id }) {
  const { api } = useStore();
  const { value } = useRead(() => api.call('assistant.read', { assistant_id: id }), [id]);
  return value?.name && html`<small>${value.name}</small>`;
}

function togglePanel(/** @type {Store} */ store) {
  store.navigation.panel.value = store.navigation.panel.value === 'files' ? null : 'files';
}

/**
 * The title of a conversation: from its log, else from the list.
 *
 * @param {Store} store
 * @param {Conversation | null} conversation
 */
export function titleOf(store, conversation) {
  if (!conversation) return t('sidebar.new');
  const listed = store.list.find(conversation.id);
  return conversation.title || listed?.title || t('conversation.untitled');
}
