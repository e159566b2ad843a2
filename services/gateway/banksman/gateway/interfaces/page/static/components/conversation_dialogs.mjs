/** The dialogs that change a conversation: its title, its labels, its people, its end. */

import { useLayoutEffect, useRef, useState } from 'preact/hooks';

import { parts, t } from '../strings.mjs';
import { FormDialog, TextField, namesIn } from './fields.mjs';
import { ShareDialog } from './share.mjs';
import { html, useStore } from './ui.mjs';

/** The dialog that an item of the menu of a conversation opens. @param {{dialog: string | null, item: any, onClose: () => void}} properties */
export function ConversationDialog({ dialog, item, onClose }) {
  const { conversation_id: id, title = '', labels = [] } = item;
  switch (dialog) {
    case 'rename':
      return html`<${RenameDialog} id=${id} title=${title} onClose=${onClose} />`;
    case 'labels':
      return html`<${LabelDialog} id=${id} labels=${labels} onClose=${onClose} />`;
    case 'share':
      return html`<${ShareDialog} id=${id} title=${title || t('conversation.this')} onClose=${onClose} />`;
    case 'delete':
      return html`<${DeleteDialog} id=${id} title=${title || t('conversation.this')} onClose=${onClose} />`;
    default:
      return null;
  }
}

/** @param {{id: string, labels: string[], onClose: () => void}} properties */
function LabelDialog({ id, labels, onClose }) {
  const { conversations, list } = useStore();
  const [value, setValue] = useState(labels.join(', '));
  const submit = () => {
    conversations.mark(id, { labels: [...new Set(namesIn(value))] });
    onClose();
  };
  const others = list.labels.value;
  return html`<${FormDialog}
    title=${t('conversation.labels')}
    label=${t('app.save')}
    onSubmit=${submit}
    onClose=${onClose}>
    <${TextField} label=${t('conversation.labelsText')} value=${value} onChange=${setValue} maxlength="400"
      >${
        others.length > 0 &&
        html`<small class="muted">${t('conversation.labelsKnown', { labels: others.join(', ') })}</small>`
      }<//
    >
  <//>`;
}

/** @param {{id: string, title: string, onClose: () => void}} properties */
function RenameDialog({ id, title, onClose }) {
  const { conversations } = useStore();
  const [value, setValue] = useState(title);
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  useLayoutEffect(() => input.current?.select(), []);
  const submit = () => {
    if (value.trim() && value.trim() !== title) conversations.rename(id, value.trim());
    onClose();
  };
  return html`<${FormDialog}
    title=${t('conversation.renameTitle')}
    label=${t('conversation.rename')}
    disabled=${!value.trim()}
    onSubmit=${submit}
    onClose=${onClose}>
    <${TextField}
      label=${t('conversation.title')}
      value=${value}
      onChange=${setValue}
      maxlength="200"
      field=${input} />
  <//>`;
}

/** @param {{id: string, title: string, onClose: () => void}} properties */
function DeleteDialog({ id, title, onClose }) {
  const { conversations } = useStore();
  return html`<${FormDialog}
    title=${t('conversation.deleteTitle')}
    label=${t('app.delete')}
    danger
    onSubmit=${() => (conversations.remove(id), onClose())}
    onClose=${onClose}>
    <p>${parts('conversation.deleteQuestion', { title: html`<strong>${title}</strong>` })}</p>
  <//>`;
}
