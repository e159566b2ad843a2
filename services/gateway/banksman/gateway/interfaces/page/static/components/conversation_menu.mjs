/** The actions for a conversation, in the list and in its header. */

import { addressOf } from '../router.mjs';
import { explain, t } from '../strings.mjs';
import { copyText } from './ui.mjs';
import { saveBlob } from './tools.mjs';

/**
 * The items of the menu.
 *
 * @param {import('../store.mjs').Store} store
 * @param {{conversation_id: string, pinned?: boolean, archived?: boolean}} item
 * @param {(dialog: 'rename' | 'delete') => void} setDialog
 */
export function menuOf(store, item, setDialog) {
  const id = item.conversation_id;
  const pinned = Boolean(item.pinned);
  const archived = Boolean(item.archived);
  return [
    { label: t('conversation.rename'), icon: 'pencil', action: () => setDialog('rename') },
    { label: t(pinned ? 'conversation.unpin' : 'conversation.pin'), icon: 'pin', action: () => store.mark(id, { pinned: !pinned }) },
    { label: t('conversation.link'), icon: 'copy', action: () => copyLink(store, id) },
    { label: t('conversation.markdown'), icon: 'download', action: () => save(store, id, 'markdown') },
    { label: t('conversation.json'), icon: 'download', action: () => save(store, id, 'json') },
    { label: t(archived ? 'conversation.restore' : 'conversation.archive'), icon: 'archive', action: () => store.mark(id, { archived: !archived }) },
    { label: t('conversation.delete'), icon: 'trash', danger: true, action: () => setDialog('delete') },
  ];
}

/** Copy a link that shows the conversation to people of this tenant, without a message box. */
async function copyLink(store, id) {
  await copyText(new URL(addressOf('read', id), document.baseURI).href);
  store.toast(t('conversation.linkCopied'), 'info');
}

async function save(store, id, form) {
  try {
    const { exported } = await import('../exporting.mjs');
    const { blob, name } = await exported(store.api, id, form);
    saveBlob(blob, name);
  } catch (error) {
    store.toast(explain(error));
  }
}
