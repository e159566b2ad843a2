/** The command palette: every command of the page, all conversations, and the messages that contain a text. */

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';

import { VIEWS, addressOf, viewsFor } from '../router.mjs';
import { LANGUAGES, explain, locale, t } from '../strings.mjs';
import { THEMES, setTheme } from '../theme.mjs';
import { titleOf } from './header.mjs';
import { ConversationDialog, accountItems, chooseImport, menuOf } from './sidebar.mjs';
import { Dialog, Icon, html, useStore } from './ui.mjs';

const SEARCH_DELAY_MS = 150;
const MIN_SEARCH_CHARACTERS = 2;
const MAX_CONVERSATIONS = 20;
const MAX_HITS = 20;
const MAX_SEARCH_PAGES = 20;
/** @type {Record<string, number>} */
const STEPS = { ArrowDown: 1, ArrowUp: -1 };

/**
 * @typedef {object} Command
 * @property {string} label
 * @property {string} [icon]
 * @property {() => void} action
 * @property {boolean} [opensDialog] it opens a dialog in place of the palette
 * @property {string} [detail] a second line
 */

/** @param {{onClose: () => void}} properties */
export function Palette({ onClose }) {
  const store = useStore();
  const [query, setQuery] = useState('');
  const [dialog, setDialog] = useState(/** @type {string | null} */ (null));
  const [at, setAt] = useState(0);
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const { of, conversations, hits, error } = useSearch(store, query);
  const commands = useMemo(() => commandsOf(store, setDialog), [store.opened.current.value]);
  /** @type {[Key, Command[]][]} */
  const all = [
    ['palette.commands', matching(commands, query)],
    // Until the results of another text arrive, Enter must not open what does not contain this one.
    ['sidebar.label', of === query ? conversations : matching(conversations, query)],
    ['sidebar.hits', of === query ? hits : []],
  ];
  const groups = all.filter(([, members]) => members.length);
  const found = groups.flatMap(([, members]) => members);
  useEffect(() => list.current?.querySelector('[aria-selected=true]')?.scrollIntoView({ block: 'nearest' }));

  if (dialog) {
    const item = { ...listedItem(store), title: titleOf(store, store.opened.current.value) };
    return html`<${ConversationDialog} dialog=${dialog} item=${item} onClose=${onClose} />`;
  }

  const run = (/** @type {Command} */ command) => {
    if (!command.opensDialog) onClose();
    command.action();
  };
  const onKeyDown = (/** @type {PageEvent} */ event) => {
    const step = STEPS[event.key];
    if (step === undefined && event.key !== 'Enter') return;
    event.preventDefault();
    if (step) setAt((at + step + found.length) % (found.length || 1));
    else if (found[at]) run(found[at]);
  };
  return html`<${Dialog} title=${t('palette.title')} onClose=${onClose} kind="fixed">
    <div class="palette stack">
      <input
        type="text"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant=${found.length ? `palette-${at}` : undefined}
        aria-label=${t('palette.title')}
        placeholder=${t('palette.placeholder')}
        enterkeyhint="go"
        autofocus
        value=${query}
        onInput=${(event) => (setQuery(event.target.value), setAt(0))}
        onKeyDown=${onKeyDown} />
      <div id="palette-list" role="listbox" aria-label=${t('palette.title')} tabindex="-1" ref=${list}>
        ${groups.map(
          ([key, members]) =>
            html`<div role="group" key=${key} aria-label=${t(key)}>
              <div class="sidebar-heading" aria-hidden="true">${t(key)}</div>
              ${members.map(
                (command) =>
                  html`<${Option}
                    command=${command}
                    at=${found.indexOf(command)}
                    selected=${at}
                    onRun=${run}
                    onSelect=${setAt} />`,
              )}
            </div>`,
        )}
        ${!found.length && html`<p class="empty" role="status">${error ?? t('app.noResults')}</p>`}
      </div>
    </div>
  <//>`;
}

/** @param {{command: Command, at: number, selected: number, onRun: (command: Command) => void, onSelect: (at: number) => void}} properties */
function Option({ command, at, selected, onRun, onSelect }) {
  return html`<div
    id=${`palette-${at}`}
    class="option"
    role="option"
    aria-selected=${at === selected}
    onClick=${() => onRun(command)}
    onPointerMove=${() => onSelect(at)}>
    <${Icon} name=${command.icon} size=${16} /><span>${command.label}</span>
    ${command.detail && html`<small>${command.detail}</small>`}
  </div>`;
}

/** @typedef {{of: string, conversations: Command[], hits: Command[], error: string | null}} Found `of`: the text */

/**
 * The conversations and messages that contain a text; the newest conversations for a short text.
 *
 * @param {Store} store
 * @param {string} query
 */
function useSearch(store, query) {
  const [found, setFound] = useState(
    /** @type {Found} */ ({ of: '', conversations: [], hits: [], error: null }),
  );
  useEffect(() => {
    let current = true;
    const show = (/** @type {Partial<Found>} */ more) =>
      current && setFound((before) => ({ ...before, error: null, ...more }));
    const showHits = (/** @type {Hit[]} */ hits) => show({ hits: hits.map(hitCommand) });
    // One after the other: a conversation above the hits would move what Enter opens.
    const search = () =>
      store.api
        .conversations({ query, limit: MAX_CONVERSATIONS })
        .then(({ items }) => {
          show({ of: query, conversations: items.map(conversationCommand), hits: [] });
          return readHits(store.api, query, showHits, () => current);
        })
        .catch((error) => show({ error: explain(error) }));
    const timer = setTimeout(search, query ? SEARCH_DELAY_MS : 0);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [query]);
  return found;
}

/** @typedef {{conversation_id: string, message_id: string, title: string, snippet: string}} Hit */

/**
 * Show the messages that contain a text. A page without hits has a cursor too: the server reads for a limited time.
 *
 * @param {Api} api
 * @param {string} query
 * @param {(hits: Hit[]) => void} show
 * @param {() => boolean} isCurrent
 */
async function readHits(api, query, show, isCurrent) {
  /** @type {Hit[]} */
  const hits = [];
  /** @type {string | null} */
  let cursor = query.length < MIN_SEARCH_CHARACTERS ? null : '';
  for (let pages = 0; cursor !== null && hits.length < MAX_HITS && pages < MAX_SEARCH_PAGES; pages += 1) {
    const page = await api.search(query, { cursor: cursor || null });
    if (!isCurrent()) return;
    hits.push(...page.items);
    show(hits);
    cursor = page.next;
  }
}

const go = (/** @type {string} */ address) => () => (location.hash = address);

/** @returns {Command} @param {{conversation_id: string, title: string}} options */
const conversationCommand = ({ conversation_id: id, title }) => ({
  label: title || t('conversation.untitled'),
  icon: 'message',
  action: go(`#/c/${id}`),
});

/** @param {Hit} hit @returns {Command} */
const hitCommand = ({ conversation_id: id, message_id: message, title, snippet }) => ({
  label: title || t('conversation.untitled'),
  detail: snippet,
  icon: 'search',
  action: go(`#/c/${id}/${message}`),
});

function matching(/** @type {Command[]} */ commands, /** @type {string} */ query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return commands.filter(({ label }) => words.every((word) => label.toLowerCase().includes(word)));
}

/** The entry of the open conversation in the list. @param {Store} store */
function listedItem(store) {
  const id = store.opened.current.value?.id;
  const listed = [...store.list.pinned.value, ...store.list.state.value.items];
  return listed.find((one) => one.conversation_id === id) ?? { conversation_id: id ?? '' };
}

/** @returns {Command[]} @param {Store} store @param {(dialog: string | null) => void} setDialog */
function commandsOf(store, setDialog) {
  const current = store.opened.current.value;
  const views = viewsFor(store.session.welcome.value?.rights).filter((name) => name !== 'settings');
  const item = listedItem(store);
  const ofConversation = [
    {
      label: t('header.filesTitle'),
      icon: 'folder',
      action: () => (store.navigation.panel.value = 'files'),
    },
    ...menuOf(store, item, setDialog).map((command) => ({
      ...command,
      label: t('palette.conversation', { action: command.label }),
      opensDialog: ['pencil', 'tag', 'trash'].includes(command.icon),
    })),
  ];
  return [
    { label: t('sidebar.new'), icon: 'plus', action: () => store.navigation.open(null) },
    ...views.map((name) => ({
      label: t(VIEWS[name].title),
      icon: VIEWS[name].icon,
      action: go(addressOf(name)),
    })),
    { label: t('welcome.workflow'), icon: 'workflow', action: () => (store.runs.form.value = true) },
    ...(current ? ofConversation : []),
    {
      label: t('header.detailsTitle'),
      icon: 'details',
      action: () => store.settings.toggleDetails(),
    },
    ...store.list.labels.value.map((name) => ({
      label: t('palette.label', { label: name }),
      icon: 'tag',
      action: () => store.list.showLabel(name),
    })),
    { label: t('import.title'), icon: 'upload', action: chooseImport },
    ...accountItems(store).filter(({ icon }) => icon !== 'manage'),
    ...THEMES.map((name) => ({
      label: t('palette.theme', { theme: t(`settings.theme.${name}`) }),
      icon: 'theme',
      action: () => setTheme(name, store.settings.preferences),
    })),
    ...Object.entries(LANGUAGES)
      .filter(([tag]) => tag !== locale())
      .map(([tag, name]) => ({
        label: t('palette.language', { language: name }),
        icon: 'language',
        action: () => store.settings.setLanguage(tag),
      })),
  ];
}
