/** Compose the page: API client, store, components. */

import { render } from 'preact';

import { Api } from './client/api.mjs';
import { App } from './components/app.mjs';
import { StoreContext, html } from './components/ui.mjs';
import { explain, languageFor, setLanguage } from './strings.mjs';
import { Store } from './store.mjs';
import { TOKEN } from './stores/session.mjs';
import { restoreTheme } from './theme.mjs';

// After the text comes the view to open afterwards, for example `/c/` and the id of a shared conversation.
const INVITATION = /^#\/invitation\/([\w-]+)(\/.*)?$/;
// A link that is opened in a tab with the page changes only the address: the view of the tab stays.
addEventListener('hashchange', ({ oldURL }) => {
  const [invitation, , view] = INVITATION.exec(location.hash) ?? [];
  if (!invitation) return;
  const before = new URL(oldURL).hash;
  if (!view && !INVITATION.test(before)) history.replaceState(null, '', invitation + before.slice(1));
  location.reload();
});

// The keys of an input method are text, for example Enter, which ends a composition. Safari reports them by the code.
const isComposed = (/** @type {KeyboardEvent} */ event) => event.isComposing || event.keyCode === 229;
addEventListener('keydown', (event) => isComposed(event) && event.stopPropagation(), true);

restoreTheme(localStorage);
const language = languageFor([localStorage.getItem('banksman.language'), ...navigator.languages]);
const languageLoaded = setLanguage(/** @type {import('./strings.mjs').Language} */ (language));
document.documentElement.lang = language;

/** @type {Api} */
const api = new Api({
  base: new URL('./', document.baseURI).href,
  token: () => store.session.token,
  onUnauthorized: () => store.session.unauthorized(),
});
/** @type {Store} */
const store = new Store({ api, preferences: localStorage });

// Only a user who returns from the provider has a `state`; other visits do not need the module.
const signIn = new URLSearchParams(location.search).has('state') ? await import('./signin.mjs') : null;
const signedIn = await signIn?.complete(api, {
  session: sessionStorage,
  preferences: localStorage,
  location,
  history,
});
const invited = await claimed();
const token = signedIn?.token ?? invited?.token;
if (token) localStorage.setItem(TOKEN, token);

await languageLoaded;
store.session.signInError = signedIn?.error ?? (invited?.failure ? explain(invited.failure) : null);
render(
  html`<${StoreContext.Provider} value=${store}><${App} /><//>`,
  /** @type {HTMLElement} */ (document.getElementById('app')),
);
store.start();
// Messages need it as soon as they arrive; other views load it when the page is idle.
if (store.navigation.currentId.value) import('./components/content.mjs').catch(() => {});
sessionStorage.removeItem('banksman.starts');

// Preload the modules that most conversations need next, once the page is usable.
const whenIdle = globalThis.requestIdleCallback ?? ((action) => setTimeout(action, 500));
whenIdle(() =>
  import('./offline.mjs').then(
    ({ register }) => register(),
    () => {},
  ),
);
whenIdle(() =>
  Promise.allSettled([
    import('./components/content.mjs'),
    import('./components/approval.mjs'),
    import('./components/palette.mjs'),
    import('./components/conversation_dialogs.mjs'),
  ]),
);

/** The key of the invitation that the address names; the address must not stay. It is null for other addresses. */
async function claimed() {
  const [, text, view] = INVITATION.exec(location.hash) ?? [];
  if (!text) return null;
  history.replaceState(null, '', location.pathname + (view ? `#${view}` : ''));
  try {
    return { token: (await api.call('invitation.claim', {}, { text })).key };
  } catch (failure) {
    return { failure };
  }
}
