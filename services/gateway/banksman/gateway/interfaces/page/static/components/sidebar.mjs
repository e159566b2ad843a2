/** The navigation: views, the conversations in groups, and the account. */

import { useState } from 'preact/hooks';

import { isBusy, pendingApprovals } from '../events.mjs';
import { VIEWS, addressOf, tabsOf } from '../router.mjs';
import { locale, t } from '../strings.mjs';
import { formatWhen } from '../text.mjs';
import { saveBlob } from './tools.mjs';
import { COMMAND, Icon, IconButton, LinkButton, Mark, Menu, copyText, html, lazy, useStore } from './ui.mjs';

/**
 * @typedef {{conversation_id: string, title: string} & Partial<Listing>} Row
 *   a conversation of the list, or of a request that waits for the user
 */

/** The dialog that an item of the menu of a conversation opens. */
export const ConversationDialog = lazy(() => import('./conversation_dialogs.mjs'), 'ConversationDialog');

const DAY_MS = 86_400_000;

export function Sidebar() {
  const store = useStore();
  const { next, loading, error, archived } = store.list.state.value;
  const groups = groupsOf(store);
  const onKeyDown = (/** @type {PageEvent} */ event) =>
    event.key === 'Escape' && (store.navigation.sidebar.value = false);
  return html`<nav class="sidebar" aria-label=${t('sidebar.label')} onKeyDown=${onKeyDown}>
    <div class="sidebar-head">
      <a class="brand bar" href="#/"><${Mark} size=${24} /><span>Banksman</span></a>
      <${Menu} label=${t('sidebar.more')} items=${listItems(store)} />
      <${IconButton}
        name="close"
        label=${t('sidebar.close')}
        onClick=${() => (store.navigation.sidebar.value = false)}
        class="icon-button narrow-only" />
    </div>
    <button type="button" class="button new" onClick=${() => newConversation(store)}>
      <${Icon} name="plus" size=${16} />${t('sidebar.new')}
    </button>
    <${Navigation} />
    <${LabelChoice} />
    <ul class="conversations">
      ${groups.map(([title, items]) => [
        html`<li key=${title} class="sidebar-heading">${title}</li>`,
        // One list with keys, so that a row that moves to another group keeps its open menu.
        ...items.map((item) => html`<${Item} key=${item.conversation_id} item=${item} />`),
      ])}
      ${
        next &&
        html`<li><${LinkButton} class="more" onClick=${() => store.list.more()}>${t('app.showMore')}<//></li>`
      }
    </ul>
    ${
      archived &&
      html`<${LinkButton} class="more" onClick=${() => store.list.showArchived(false)}>
        ${t('sidebar.showOthers')}
      <//>`
    }
    ${
      error &&
      html`<p class="sidebar-note muted text-s">
        ${error}
        <${LinkButton} onClick=${() => store.list.refresh()}>${t('app.tryAgain')}<//>
      </p>`
    }
    ${
      !error &&
      !loading &&
      !groups.length &&
      html`<p class="sidebar-note muted text-s">${t('sidebar.empty')}</p>`
    }
    <${Import} />
    <${Account} />
  </nav>`;
}

/**
 * The conversations in groups: those that wait for the user, the pinned ones, and the others by the day of their
 * last message; or the archived ones.
 *
 * @param {Store} store
 * @returns {[string, Row[]][]} title of the group, and its conversations
 */
function groupsOf(store) {
  const { items, archived, label } = store.list.state.value;
  if (archived) return items.length ? [[t('sidebar.archived'), items]] : [];
  const asked = (label === null ? store.inbox.waiting.value : []).map(({ conversationId, title }) => ({
    conversation_id: conversationId,
    title,
  }));
  /** @type {Map<string, Row>} */
  const all = new Map(
    [...asked, ...store.list.pinned.value.filter((item) => hasLabel(item, label)), ...items].map((item) => [
      item.conversation_id,
      item,
    ]),
  );
  /** @type {Map<string, Row[]>} */
  const groups = new Map([
    [t('sidebar.waiting'), []],
    [t('sidebar.pinned'), []],
  ]);
  const waits = new Set(asked.map((item) => item.conversation_id));
  for (const item of all.values()) {
    const isWaiting = waits.has(item.conversation_id) || stateOf(store, item) === 'waiting';
    const title = isWaiting ? t('sidebar.waiting') : item.pinned ? t('sidebar.pinned') : ageOf(item);
    groups.set(title, [...(groups.get(title) ?? []), item]);
  }
  return [...groups].filter(([, members]) => members.length);
}

/** @param {{labels?: string[]}} item @param {string | null} label */
const hasLabel = ({ labels = [] }, label) => label === null || labels.includes(label);

/** List only the conversations with one label; without labels there is nothing to choose. */
function LabelChoice() {
  const { list } = useStore();
  const { label } = list.state.value;
  if (!list.labels.value.length) return null;
  return html`<label class="label-choice bar muted">
    <${Icon} name="tag" size=${15} />
    <select
      class="grow text-s"
      aria-label=${t('sidebar.label.choose')}
      value=${label ?? ''}
      onChange=${(/** @type {any} */ event) => list.showLabel(event.target.value || null)}>
      <option value="">${t('sidebar.label.all')}</option>
      ${list.labels.value.map((/** @type {string} */ name) => html`<option value=${name}>${name}</option>`)}
    </select>
  </label>`;
}

/** The name of the day or the month of the last message. @param {Row} row */
function ageOf({ updated_at: at }) {
  const moment = new Date(at ?? Date.now());
  const midnight = new Date().setHours(0, 0, 0, 0);
  const days = Math.ceil((midnight - moment.getTime()) / DAY_MS);
  if (days <= 0) return t('sidebar.today');
  if (days === 1) return t('sidebar.yesterday');
  if (days <= 7) return t('sidebar.week');
  return moment.toLocaleDateString(locale(), { month: 'long', year: 'numeric' });
}

/** The items of the menu of the list. @param {Store} store */
function listItems(store) {
  const { archived } = store.list.state.value;
  return [
    {
      label: t(archived ? 'sidebar.showOthers' : 'sidebar.showArchived'),
      icon: archived ? 'back' : 'archive',
      action: () => store.list.showArchived(!archived),
    },
    { label: t('import.title'), icon: 'upload', action: chooseImport },
  ];
}

function newConversation(/** @type {Store} */ store) {
  store.navigation.open(null);
  store.navigation.sidebar.value = false;
  document.getElementById('composer')?.focus();
}

/** The approval requests, the library and the search. */
function Navigation() {
  const { inbox, navigation, session } = useStore();
  const { view } = navigation.route.value;
  const count = inbox.waiting.value.length;
  const [library] = tabsOf('library', session.welcome.value?.rights);
  /** @param {string} name @param {string} title @param {boolean} isCurrent @param {string} icon @param {Shown} [more] */
  const link = (name, title, isCurrent, icon, more) =>
    html`<li>
      <a href=${addressOf(name)} aria-current=${isCurrent ? 'page' : undefined}
        ><${Icon} name=${icon} size=${16} /><span>${title}</span>${more}</a
      >
    </li>`;
  return html`<ul class="views">
    ${link(
      'approvals',
      t('inbox.title'),
      VIEWS[view]?.group === 'approvals',
      'shield',
      count > 0 && html`<span class="count" aria-label=${t('inbox.waiting', { count })}>${count}</span>`,
    )}
    ${link(library, t('sidebar.library'), VIEWS[view]?.group === 'library', 'book')}
    <li>
      <button type="button" onClick=${() => navigation.openPalette()}>
        <${Icon} name="search" size=${16} /><span>${t('sidebar.search')}</span><kbd>${COMMAND} K</kbd>
      </button>
    </li>
  </ul>`;
}

/** Choose an exported conversation. */
function Import() {
  const { conversations } = useStore();
  const choose = async (/** @type {PageEvent} */ { target }) => {
    const [file] = target.files ?? [];
    if (file) await conversations.importFile(file);
    target.value = '';
  };
  return html`<input
    id="import-file"
    type="file"
    accept=".json,.zip,application/json,application/zip"
    aria-label=${t('import.title')}
    hidden
    onChange=${choose} />`;
}

export function chooseImport() {
  document.getElementById('import-file')?.click();
}

function Item(/** @type {{item: Row}} */ { item }) {
  const store = useStore();
  const id = item.conversation_id;
  const [dialog, setDialog] = useState(/** @type {string | null} */ (null));
  const current = store.navigation.currentId.value === id;
  const state = stateOf(store, item);
  const title = item.title || t('conversation.untitled');
  return html`<li class=${`conversation ${current ? 'current' : ''}`}>
    <a
      class="bar grow text-m"
      href=${`#/c/${id}`}
      aria-current=${current ? 'page' : undefined}
      title=${[title, formatWhen(item.updated_at)].filter(Boolean).join(' · ')}>
      <span class="conversation-title">${title}</span>
      ${item.people && html`<${Lock} people=${item.people} />`}
      ${(item.labels ?? []).map(
        (/** @type {string} */ label) => html`<span class="conversation-label">${label}</span>`,
      )}
      ${
        state &&
        html`<span
          class=${`dot ${state}`}
          role="img"
          aria-label=${t(`sidebar.${state}`)}
          title=${t(`sidebar.${state}`)} />`
      }
    </a>
    <${Menu} label=${t('sidebar.actions', { title })} items=${menuOf(store, item, setDialog)} />
    ${
      dialog && html`<${ConversationDialog} dialog=${dialog} item=${item} onClose=${() => setDialog(null)} />`
    }
  </li>`;
}

/** A lock at a conversation that is limited to people. @param {{people: string[]}} properties */
export function Lock({ people }) {
  const text = t('share.limitedTo', { people: people.join(', ') });
  return html`<span class="lock" role="img" aria-label=${text} title=${text}
    ><${Icon} name="lock" size=${13}
  /></span>`;
}

/**
 * The state of a subscribed conversation is newer than the state in the list.
 *
 * @param {Store} store
 * @param {Row} item
 */
function stateOf(store, item) {
  const view = store.opened.stateOf(item.conversation_id);
  if (view?.replayed && !view.error) {
    if (pendingApprovals(view).length) return 'waiting';
    return isBusy(view) ? 'working' : null;
  }
  if (item.status === 'awaiting_approval' || item.status === 'awaiting_input') return 'waiting';
  return ['running', 'queued', 'cancelling'].includes(item.status ?? '') ? 'working' : null;
}

function Account() {
  const store = useStore();
  const welcome = store.session.welcome.value;
  if (!welcome) return null;
  const name = [welcome.user || t('sidebar.account'), welcome.tenant].filter(Boolean).join(' · ');
  return html`<footer class="account">
    <${Menu} label=${t('sidebar.accountOf', { name })} items=${accountItems(store)} up>
      <span class="avatar" data-letter=${name[0].toUpperCase()} />
      <span class="account-name grow">${name}</span>
      <${Icon} name="expand" size=${14} />
    <//>
  </footer>`;
}

/**
 * The items of the menu of the account: settings, the page for administrators, and signing in or out.
 *
 * @param {Store} store
 * @returns {import('./ui.mjs').MenuItem[]}
 */
export function accountItems(store) {
  const go = (/** @type {string} */ address) => () => (location.hash = address);
  const [manage] = tabsOf('manage', store.session.welcome.value?.rights);
  return [
    { label: t('settings.title'), icon: 'settings', action: go(addressOf('settings')) },
    ...(manage ? [{ label: t('sidebar.manage'), icon: 'manage', action: go(addressOf(manage)) }] : []),
    { label: t('keys.title'), icon: 'keyboard', action: () => (store.navigation.shortcut.value = 'map') },
    store.session.token
      ? { label: t('sidebar.signOut'), icon: 'exit', action: () => store.session.logout() }
      : { label: t('sidebar.signIn'), icon: 'key', action: () => store.session.signIn() },
  ];
}

/**
 * The items of the menu of a conversation, in the list and in its header.
 *
 * @param {Store} store
 * @param {{conversation_id: string, pinned?: boolean, archived?: boolean, labels?: string[]}} item
 * @param {(dialog: 'rename' | 'labels' | 'share' | 'delete') => void} setDialog
 * @returns {import('./ui.mjs').MenuItem[]}
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
      action: () => store.conversations.mark(id, { pinned: !pinned }),
    },
    { label: t('share.open'), icon: 'people', action: () => setDialog('share') },
    { label: t('conversation.labels'), icon: 'tag', action: () => setDialog('labels') },
    { label: t('conversation.compact'), icon: 'compact', action: () => store.conversations.compact(id) },
    { label: t('conversation.link'), icon: 'copy', action: () => copyLink(store, id) },
    { label: t('conversation.markdown'), icon: 'download', action: () => save(store, id, 'markdown') },
    { label: t('conversation.json'), icon: 'download', action: () => save(store, id, 'json') },
    {
      label: t(archived ? 'conversation.restore' : 'conversation.archive'),
      icon: 'archive',
      action: () => store.conversations.mark(id, { archived: !archived }),
    },
    { label: t('app.delete'), icon: 'trash', danger: true, action: () => setDialog('delete') },
  ];
}

/**
 * Copy a link that shows the conversation to people of this tenant, without a message box.
 *
 * @param {Store} store
 * @param {string} id
 */
async function copyLink(store, id) {
  await copyText(new URL(addressOf('read', id), document.baseURI).href);
  store.toasts.show(t('conversation.linkCopied'), 'info');
}

function save(/** @type {Store} */ store, /** @type {string} */ id, /** @type {'markdown' | 'json'} */ form) {
  return store.toasts.attempt(async () => {
    const { exported } = await import('../exporting.mjs');
    const { blob, name } = await exported(store.api, id, form);
    saveBlob(blob, name);
  });
}
