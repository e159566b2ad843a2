/** The list of conversations: search, open, and the actions for a conversation. */

import { useEffect, useRef, useState } from 'preact/hooks';

import { isBusy, pendingApprovals } from '../events.mjs';
import { VIEWS, addressOf } from '../router.mjs';
import { explain, parts, t } from '../strings.mjs';
import { formatWhen } from '../text.mjs';
import { saveBlob } from './tools.mjs';
import { Dialog, Icon, IconButton, Mark, Menu, copyText, html, useStore } from './ui.mjs';

const SEARCH_DELAY_MS = 200;

export function Sidebar() {
  const store = useStore();
  const { items, next, loading, error, query, archived, hits } = store.list.state.value;
  const pinned = query || archived ? [] : store.list.pinned.value;
  const above = new Set(pinned.map((item) => item.conversation_id));
  const shown = items.filter((item) => !above.has(item.conversation_id));
  const onKeyDown = (event) => event.key === 'Escape' && (store.sidebar.value = false);
  return html`<nav class="sidebar" aria-label=${t('sidebar.label')} onKeyDown=${onKeyDown}>
    <div class="sidebar-head">
      <a class="brand" href="#/"><${Mark} size=${28} /><span>Banksman</span></a>
      <${IconButton}
        name="close"
        label=${t('sidebar.close')}
        onClick=${() => (store.sidebar.value = false)}
        class="icon-button narrow-only"
      />
    </div>
    <button type="button" class="button new" onClick=${() => newConversation(store)}>
      <${Icon} name="plus" size=${16} />${t('sidebar.new')}
    </button>
    <${Navigation} />
    <${Search} />
    <ul class="conversations">
      ${[
        // One list with keys, so that a row that becomes pinned keeps its open menu.
        pinned.length > 0 && heading('pinned'),
        ...pinned.map(row),
        (pinned.length > 0 || archived) && heading(archived ? 'archived' : 'others'),
        ...shown.map(row),
      ]}
      ${query && hits.length > 0 && heading('hits')}
      ${query && hits.map((hit) => html`<${Hit} key=${hit.message_id} hit=${hit} />`)}
    </ul>
    ${error && html`<p class="sidebar-note">${error} <button type="button" class="link" onClick=${() => store.list.refresh()}>${t('app.tryAgain')}</button></p>`}
    ${!error && !loading && !items.length && !(query && hits.length) && html`<p class="sidebar-note">${t(query ? 'app.noResults' : 'sidebar.empty')}</p>`}
    ${next && html`<button type="button" class="link more" onClick=${() => store.list.more()}>${t('app.showMore')}</button>`}
    ${!query && html`<button type="button" class="link more" onClick=${() => store.list.showArchived(!archived)}>${t(archived ? 'sidebar.showOthers' : 'sidebar.showArchived')}</button>`}
    ${!query && !archived && html`<${Import} />`}
    <${Account} />
  </nav>`;
}

const heading = (name) =>
  html`<li key=${`heading-${name}`} class="sidebar-heading">${t(`sidebar.${name}`)}</li>`;
const row = (item) => html`<${Item} key=${item.conversation_id} item=${item} />`;

/** Show the list on a narrow page. */
export function openSidebar(store) {
  store.sidebar.value = true;
  requestAnimationFrame(() => document.querySelector('.sidebar .new')?.focus());
}

function newConversation(store) {
  store.open(null);
  store.sidebar.value = false;
  document.getElementById('composer')?.focus();
}

/** Links to the views that the user may open. */
function Navigation() {
  const store = useStore();
  const rights = store.welcome.value?.rights;
  const shown = Object.entries(VIEWS).filter(
    ([, view]) => view.icon && (!view.right || !rights || rights.includes(view.right)),
  );
  return (
    shown.length > 0 &&
    html`<ul class="views">
      ${shown.map(
        ([name, view]) =>
          html`<li key=${name}>
            <a href=${addressOf(name)} aria-current=${store.route.value.view === name ? 'page' : undefined}
              ><${Icon} name=${view.icon} size=${16} /><span>${t(view.title)}</span><${Count} view=${name}
            /></a>
          </li>`,
      )}
    </ul>`
  );
}

/** How many approval requests wait, beside the link to them. */
function Count({ view }) {
  const store = useStore();
  const count = view === 'approvals' ? store.inbox.waiting.value.length : 0;
  return count > 0 && html`<span class="count" aria-label=${t('inbox.waiting', { count })}>${count}</span>`;
}

/** Choose an exported conversation. */
function Import() {
  const store = useStore();
  const picker = useRef(null);
  const choose = async (event) => {
    const [file] = event.target.files;
    if (file) await store.importFile(file);
    picker.current.value = '';
  };
  return html`<button type="button" class="link more" onClick=${() => picker.current.click()}>
      ${t('import.title')}
    </button>
    <input ref=${picker} type="file" accept=".json,application/json" hidden onChange=${choose} />`;
}

function Search() {
  const store = useStore();
  const timer = useRef(null);
  const onInput = (event) => {
    clearTimeout(timer.current);
    const query = event.target.value.trim();
    timer.current = setTimeout(() => store.list.search(query), SEARCH_DELAY_MS);
  };
  return html`<div class="search">
    <${Icon} name="search" size=${15} />
    <input
      type="search"
      placeholder=${t('sidebar.search')}
      aria-label=${t('sidebar.searchLabel')}
      onInput=${onInput}
    />
  </div>`;
}

/** A message that contains the searched text. */
function Hit({ hit }) {
  return html`<li class="conversation">
    <a href=${`#/c/${hit.conversation_id}`}>
      <span class="conversation-title">${hit.title || t('conversation.untitled')}</span>
      <span class="conversation-hit">${hit.snippet}</span>
    </a>
  </li>`;
}

function Item({ item }) {
  const store = useStore();
  const id = item.conversation_id;
  const [dialog, setDialog] = useState(null);
  const current = store.currentId.value === id;
  const state = stateOf(store, item);
  return html`<li class=${`conversation ${current ? 'current' : ''}`}>
    <a href=${`#/c/${id}`} aria-current=${current ? 'page' : undefined}>
      <span class="conversation-title">${item.title || t('conversation.untitled')}</span>
      <span class="conversation-meta"
        >${state ? html`<span class=${`dot ${state}`} />${t(`sidebar.${state}`)}` : formatWhen(item.updated_at)}</span
      >
    </a>
    <${Menu}
      label=${t('sidebar.actions', { title: item.title || t('conversation.untitled') })}
      items=${menuOf(store, item, setDialog)}
    />
    ${dialog === 'rename' && html`<${RenameDialog} id=${id} title=${item.title ?? ''} onClose=${() => setDialog(null)} />`}
    ${dialog === 'delete' && html`<${DeleteDialog} id=${id} title=${item.title || t('conversation.this')} onClose=${() => setDialog(null)} />`}
  </li>`;
}

/** The state of a subscribed conversation is newer than the state in the list. */
function stateOf(store, item) {
  const view = store.opened.stateOf(item.conversation_id);
  if (view?.replayed && !view.error) {
    if (pendingApprovals(view).length) return 'waiting';
    return isBusy(view) ? 'working' : null;
  }
  if (item.status === 'awaiting_approval' || item.status === 'awaiting_input') return 'waiting';
  return ['running', 'queued', 'cancelling'].includes(item.status) ? 'working' : null;
}

export function RenameDialog({ id, title, onClose }) {
  const store = useStore();
  const [value, setValue] = useState(title);
  const input = useRef(null);
  useEffect(() => input.current.select(), []);
  const submit = (event) => {
    event.preventDefault();
    if (value.trim() && value.trim() !== title) store.rename(id, value.trim());
    onClose();
  };
  return html`<${Dialog} title=${t('conversation.renameTitle')} onClose=${onClose}>
    <form class="dialog-body" onSubmit=${submit}>
      <label class="form-field"
        ><span>${t('conversation.title')}</span
        ><input
          ref=${input}
          maxlength="200"
          value=${value}
          onInput=${(event) => setValue(event.target.value)}
      /></label>
      <div class="dialog-actions">
        <button type="button" class="button" onClick=${onClose}>${t('app.cancel')}</button>
        <button class="button primary" disabled=${!value.trim()}>${t('conversation.rename')}</button>
      </div>
    </form>
  <//>`;
}

export function DeleteDialog({ id, title, onClose }) {
  const store = useStore();
  const confirm = () => {
    store.remove(id);
    onClose();
  };
  return html`<${Dialog} title=${t('conversation.deleteTitle')} onClose=${onClose}>
    <div class="dialog-body">
      <p>${parts('conversation.deleteQuestion', { title: html`<strong>${title}</strong>` })}</p>
      <div class="dialog-actions">
        <button type="button" class="button" onClick=${onClose}>${t('app.cancel')}</button>
        <button type="button" class="button danger" onClick=${confirm}>${t('conversation.delete')}</button>
      </div>
    </div>
  <//>`;
}

function Account() {
  const store = useStore();
  const welcome = store.welcome.value;
  if (!welcome) return null;
  return html`<footer class="account">
    <span>${[welcome.user, welcome.tenant].filter(Boolean).join(' · ')}</span>
    <span class="version">${welcome.server_version ? `v${welcome.server_version}` : ''}</span>
    ${
      store.token
        ? html`<${IconButton}
            name="exit"
            label=${t('sidebar.signOut')}
            size=${16}
            onClick=${() => store.logout()}
          />`
        : html`<${IconButton}
            name="key"
            label=${t('sidebar.signIn')}
            size=${16}
            onClick=${() => store.signIn()}
          />`
    }
  </footer>`;
}

/**
 * The items of the menu of a conversation, in the list and in its header.
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
    {
      label: t(pinned ? 'conversation.unpin' : 'conversation.pin'),
      icon: 'pin',
      action: () => store.mark(id, { pinned: !pinned }),
    },
    { label: t('conversation.compact'), icon: 'compact', action: () => store.compact(id) },
    { label: t('conversation.link'), icon: 'copy', action: () => copyLink(store, id) },
    { label: t('conversation.markdown'), icon: 'download', action: () => save(store, id, 'markdown') },
    { label: t('conversation.json'), icon: 'download', action: () => save(store, id, 'json') },
    {
      label: t(archived ? 'conversation.restore' : 'conversation.archive'),
      icon: 'archive',
      action: () => store.mark(id, { archived: !archived }),
    },
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
