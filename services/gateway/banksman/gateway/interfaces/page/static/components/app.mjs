/** The layout of the page around the open conversation. */

import { useEffect, useLayoutEffect } from 'preact/hooks';

import { VIEWS } from '../router.mjs';
import { t, withTexts } from '../strings.mjs';
import { Composer } from './composer.mjs';
import { Header, titleOf } from './header.mjs';
import { ConnectionBanner, Notices, Toasts } from './notices.mjs';
import { Sidebar } from './sidebar.mjs';
import { Timeline } from './timeline.mjs';
import { Dialog, html, isTyping, lazy, useStore } from './ui.mjs';
import { LazyView } from './view.mjs';

const KeyboardMap = lazy(() => import('./keyboard_map.mjs'), 'KeyboardMap');
const Palette = lazy(() => import('./palette.mjs'), 'Palette');
const Login = lazy(() => import('./login.mjs'), 'Login');
const FilePanel = lazy(() => withTexts(import('./files.mjs'), 'files'), 'FilePanel');
const WorkflowDialog = lazy(
  () => withTexts(import('./workflows.mjs'), 'workflows', 'forms'),
  'WorkflowDialog',
);
const ImportedDialog = lazy(() => import('./imported.mjs'), 'ImportedDialog');
const ICON = new URL('../favicon.svg', import.meta.url).href;
const WAITING_ICON = new URL('../favicon-waiting.svg', import.meta.url).href;

export function App() {
  const store = useStore();
  const { phase } = store.session.connection.value;
  const { view, path } = store.navigation.route.value;
  useDocumentTitle(store);
  if (phase === 'unauthorized') return html`<${Login} />`;
  return html`<div class=${`app ${store.navigation.sidebar.value ? 'sidebar-open' : ''}`}>
    <a class="skip" href=${view === 'chat' ? '#composer' : '#title'} onClick=${skip}
      >${t(view === 'chat' ? 'app.skip' : 'app.skipView')}</a
    >
    <${Sidebar} />
    <div class="scrim" onClick=${() => (store.navigation.sidebar.value = false)} />
    <main class="main grow">
      ${view === 'chat' ? html`<${Chat} />` : html`<${LazyView} key=${view} name=${view} path=${path} />`}
    </main>
    ${
      store.navigation.panel.value === 'files' &&
      store.navigation.currentId.value &&
      html`<${FilePanel} key=${store.navigation.currentId.value} />`
    }
    ${store.runs.form.value && html`<${WorkflowDialog} />`}
    ${store.conversations.imported.value && html`<${ImportedDialog} />`}
    <${Toasts} />
    <${Shortcuts} />
  </div>`;
}

function Chat() {
  return html`<${Header} />
    <${ConnectionBanner} />
    <${Notices} />
    <${Timeline} />
    <${Composer} />`;
}

/** The keys that work in every view: they open the command palette, and the keyboard map. */
function Shortcuts() {
  const { navigation } = useStore();
  // As soon as the view is drawn: an effect after the frame would miss a key that is pressed at once.
  useLayoutEffect(() => {
    const onKey = (/** @type {KeyboardEvent} */ event) => {
      const wanted = wantedBy(event);
      if (!wanted || document.querySelector('dialog[open]')) return;
      event.preventDefault();
      navigation.shortcut.value = wanted;
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, []);
  const close = () => (navigation.shortcut.value = null);
  if (navigation.shortcut.value === 'palette') return html`<${Palette} onClose=${close} />`;
  if (navigation.shortcut.value === 'map')
    return html`<${Dialog} title=${t('keys.title')} onClose=${close}
      ><div class="dialog-body"><${KeyboardMap} /></div
    ><//>`;
  return null;
}

function wantedBy(/** @type {KeyboardEvent} */ event) {
  if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === 'k') return 'palette';
  return event.key === '?' && !isTyping(event) && !event.ctrlKey && !event.metaKey ? 'map' : null;
}

/** Move the focus only: the fragment of the address names the view. @param {PageEvent} event */
function skip(event) {
  event.preventDefault();
  document.getElementById(event.currentTarget.getAttribute('href')?.slice(1) ?? '')?.focus();
}

/**
 * The title of the page names the conversation or view, and with the icon how many approval requests wait.
 *
 * @param {Store} store
 */
function useDocumentTitle(store) {
  const { view } = store.navigation.route.value;
  const title =
    view !== 'chat'
      ? t(VIEWS[view].title)
      : store.opened.current.value
        ? titleOf(store, store.opened.current.value)
        : '';
  const waiting = store.inbox.waiting.value.length;
  useEffect(() => {
    document.title = `${waiting ? `(${waiting}) ` : ''}${title ? `${title} · ` : ''}Banksman`;
    /** @type {HTMLLinkElement} */ (document.querySelector('link[rel=icon]')).href = waiting
      ? WAITING_ICON
      : ICON;
  }, [title, waiting]);
}
