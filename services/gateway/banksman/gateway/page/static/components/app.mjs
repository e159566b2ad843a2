/** The layout of the page around the open conversation. */

import { useEffect } from 'preact/hooks';

import { pendingApprovals } from '../events.mjs';
import { t } from '../strings.mjs';
import { Composer } from './composer.mjs';
import { Header, titleOf } from './header.mjs';
import { lazy } from './lazy.mjs';
import { Login } from './login.mjs';
import { ConnectionBanner, Notices, Toasts } from './notices.mjs';
import { Sidebar } from './sidebar.mjs';
import { Timeline } from './timeline.mjs';
import { html, useStore } from './ui.mjs';
import { LazyView } from './view.mjs';

const FilePanel = lazy(() => import('./files.mjs'), 'FilePanel');
const WorkflowDialog = lazy(() => import('./workflows.mjs'), 'WorkflowDialog');

export function App() {
  const store = useStore();
  const { phase } = store.connection.value;
  const { view, path } = store.route.value;
  if (phase === 'unauthorized') return html`<${Login} />`;
  return html`<div class=${`app ${store.sidebar.value ? 'sidebar-open' : ''}`}>
    <a class="skip" href="#composer" onClick=${focusComposer}>${t('app.skip')}</a>
    <${Sidebar} />
    <div class="scrim" onClick=${() => (store.sidebar.value = false)} />
    <main class="main">
      ${view === 'chat' ? html`<${Chat} />` : html`<${LazyView} key=${view} name=${view} path=${path} />`}
    </main>
    ${store.panel.value === 'files' && store.currentId.value && html`<${FilePanel} key=${store.currentId.value} />`}
    ${store.workflowsOpen.value && html`<${WorkflowDialog} />`}
    <${Toasts} />
  </div>`;
}

function Chat() {
  useDocumentTitle(useStore());
  return html`<${Header} />
    <${ConnectionBanner} />
    <${Notices} />
    <${Timeline} />
    <${Composer} />`;
}

function focusComposer(event) {
  event.preventDefault();
  document.getElementById('composer')?.focus();
}

function useDocumentTitle(store) {
  const conversation = store.current.value;
  const title = conversation ? titleOf(store, conversation) : '';
  const waiting = conversation !== null && pendingApprovals(conversation).length > 0;
  useEffect(() => {
    document.title = `${waiting ? '● ' : ''}${title ? `${title} · ` : ''}Banksman`;
  }, [title, waiting]);
}
