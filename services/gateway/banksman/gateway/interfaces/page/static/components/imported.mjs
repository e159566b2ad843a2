/** What an import of a file created, and what it left out. */

import { addressOf } from '../router.mjs';
import { known, t } from '../strings.mjs';
import { Dialog, html, useStore } from './ui.mjs';

/** @typedef {import('../importing.mjs').Imported} Imported */

export function ImportedDialog() {
  const { conversations } = useStore();
  /** @type {Imported[]} */
  const items = conversations.imported.value ?? [];
  const close = () => (conversations.imported.value = null);
  const count = items.filter((item) => !item.error).length;
  return html`<${Dialog} title=${t('import.result')} onClose=${close} wide>
    <div class="dialog-body">
      <p role="status">${t('import.count', { count, all: items.length })}</p>
      <ul class="imported stack anywhere">
        ${items.map((item) => html`<${Item} item=${item} onOpen=${close} />`)}
      </ul>
    </div>
  <//>`;
}

/** @param {{item: Imported, onOpen: () => void}} properties */
function Item({ item, onOpen }) {
  const title = item.title || t('conversation.untitled');
  const missing = Object.entries(item.left_out).map(
    ([name, count]) => `${known(`import.part.${name}`, name)}${count > 1 ? ` (${count})` : ''}`,
  );
  return html`<li>
    ${
      item.conversation_id
        ? html`<a href=${addressOf('chat', item.conversation_id)} onClick=${onOpen}>${title}</a>`
        : html`<strong>${title}</strong>`
    }
    ${!item.error && html`<span class="soft text-m">${t('import.runs', { count: item.runs })}</span>`}
    ${
      missing.length > 0 &&
      html`<p class="soft text-m">${t('import.leftOut', { parts: missing.join(', ') })}</p>`
    }
    ${item.error && html`<p class="imported-error">${t('import.failed', { reason: item.error })}</p>`}
  </li>`;
}
