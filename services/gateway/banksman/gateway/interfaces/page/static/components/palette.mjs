/** The keys that work in every view: the command palette, and the keyboard map. */

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';

import { VIEWS, addressOf } from '../router.mjs';
import { t } from '../strings.mjs';
import { THEMES, setTheme } from '../theme.mjs';
import { Dialog, Icon, html, lazy, useStore } from './ui.mjs';

const KeyboardMap = lazy(() => import('./keyboard_map.mjs'), 'KeyboardMap');
const MAX_SHOWN = 12;

export function Shortcuts() {
  const [open, setOpen] = useState(null);
  useEffect(() => {
    const onKey = (event) => {
      const wanted = wantedBy(event);
      if (!wanted || document.querySelector('dialog[open]')) return;
      event.preventDefault();
      setOpen(wanted);
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, []);
  const close = () => setOpen(null);
  if (open === 'palette') return html`<${Palette} onClose=${close} />`;
  if (open === 'map')
    return html`<${Dialog} title=${t('keys.title')} onClose=${close}
      ><div class="dialog-body"><${KeyboardMap} /></div
    ><//>`;
  return null;
}

function wantedBy(event) {
  if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === 'k') return 'palette';
  const typing = event.target.matches?.('input, textarea, select');
  return event.key === '?' && !typing && !event.ctrlKey && !event.metaKey ? 'map' : null;
}

/** A search over views, actions and listed conversations. */
function Palette({ onClose }) {
  const store = useStore();
  const [query, setQuery] = useState('');
  const [at, setAt] = useState(0);
  const list = useRef(null);
  const commands = useMemo(() => commandsOf(store), [store.list.state.value, store.opened.current.value]);
  const found = useMemo(() => matching(commands, query).slice(0, MAX_SHOWN), [commands, query]);
  const run = (command) => {
    onClose();
    command?.action();
  };
  const move = (step) => {
    const next = (at + step + found.length) % (found.length || 1);
    setAt(next);
    list.current.children[next]?.scrollIntoView({ block: 'nearest' });
  };
  const onKeyDown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step === undefined && event.key !== 'Enter') return;
    event.preventDefault();
    if (step) move(step);
    else run(found[at]);
  };
  return html`<${Dialog} title=${t('palette.title')} onClose=${onClose}>
    <div class="palette">
      <input
        type="search"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant=${found.length ? `palette-${at}` : undefined}
        aria-label=${t('palette.title')}
        placeholder=${t('palette.placeholder')}
        autofocus
        value=${query}
        onInput=${(event) => (setQuery(event.target.value), setAt(0))}
        onKeyDown=${onKeyDown}
      />
      <ul id="palette-list" role="listbox" aria-label=${t('palette.title')} ref=${list}>
        ${found.map(
          (command, index) =>
            html`<li
              id=${`palette-${index}`}
              role="option"
              aria-selected=${index === at}
              onClick=${() => run(command)}
              onPointerMove=${() => setAt(index)}
            >
              <${Icon} name=${command.icon} size=${16} /><span>${command.title}</span>
            </li>`,
        )}
      </ul>
      ${!found.length && html`<p class="empty">${t('app.noResults')}</p>`}
    </div>
  <//>`;
}

function matching(commands, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return commands.filter(({ title }) => words.every((word) => title.toLowerCase().includes(word)));
}

function commandsOf(store) {
  const go = (address) => () => (location.hash = address);
  const rights = store.welcome.value?.rights ?? [];
  const views = Object.entries(VIEWS).filter(
    ([, view]) => view.icon && (!view.right || rights.includes(view.right)),
  );
  return [
    { title: t('sidebar.new'), icon: 'plus', action: () => store.open(null) },
    ...views.map(([name, view]) => ({ title: t(view.title), icon: view.icon, action: go(addressOf(name)) })),
    { title: t('welcome.workflow'), icon: 'workflow', action: () => (store.workflowsOpen.value = true) },
    ...(store.opened.current.value
      ? [{ title: t('header.filesTitle'), icon: 'folder', action: () => (store.panel.value = 'files') }]
      : []),
    {
      title: t('header.detailsTitle'),
      icon: 'details',
      action: () => store.setDetails(!store.details.value),
    },
    ...THEMES.map((name) => ({
      title: t('palette.theme', { theme: t(`settings.theme.${name}`) }),
      icon: 'info',
      action: () => setTheme(name, store.preferences),
    })),
    ...store.list.state.value.items.map((item) => ({
      title: item.title || t('conversation.untitled'),
      icon: 'chevron',
      action: go(`#/c/${item.conversation_id}`),
    })),
  ];
}
