/** The title and the actions of the open conversation. */

import { useState } from 'preact/hooks';

import { DeleteDialog, RenameDialog } from './sidebar.mjs';
import { Icon, IconButton, Menu, html, useStore } from './ui.mjs';

export function Header() {
  const store = useStore();
  const conversation = store.current.value;
  const [dialog, setDialog] = useState(null);
  const title = titleOf(store, conversation);
  return html`<header class="header">
    <${IconButton} name="menu" label="Conversations" class="icon-button narrow-only" onClick=${() => openSidebar(store)} />
    <h1>${title}</h1>
    <div class="header-actions">
      <button type="button" class="toggle" aria-pressed=${store.details.value} title="Show every step of the agent" onClick=${() => store.setDetails(!store.details.value)}>
        <${Icon} name="details" size=${16} /><span>Details</span>
      </button>
      ${conversation &&
      html`<button type="button" class="toggle" aria-pressed=${store.panel.value === 'files'} title="Files of the workspace" onClick=${() => togglePanel(store)}>
          <${Icon} name="folder" size=${16} /><span>Files</span>
        </button>
        <${Menu}
          label="Conversation actions"
          items=${[
            { label: 'Rename', icon: 'pencil', action: () => setDialog('rename') },
            { label: 'Delete', icon: 'trash', danger: true, action: () => setDialog('delete') },
          ]}
        />`}
    </div>
    ${dialog === 'rename' && html`<${RenameDialog} id=${conversation.id} title=${title} onClose=${() => setDialog(null)} />`}
    ${dialog === 'delete' && html`<${DeleteDialog} id=${conversation.id} title=${title} onClose=${() => setDialog(null)} />`}
  </header>`;
}

function openSidebar(store) {
  store.sidebar.value = true;
  requestAnimationFrame(() => document.querySelector('.sidebar .new')?.focus());
}

function togglePanel(store) {
  store.panel.value = store.panel.value === 'files' ? null : 'files';
}

/** The title of a conversation: from its log, else from the list. */
export function titleOf(store, conversation) {
  if (!conversation) return 'New conversation';
  const listed = store.list.value.items.find((item) => item.conversation_id === conversation.id);
  return conversation.title || listed?.title || 'Untitled';
}
