/** Compose the page: API client, store, components. */

import { render } from 'preact';

import { Api } from './client/api.mjs';
import { App } from './components/app.mjs';
import { StoreContext, html } from './components/ui.mjs';
import { languageFor, setLanguage } from './strings.mjs';
import { Store } from './store.mjs';
import { restoreTheme } from './theme.mjs';

restoreTheme(localStorage);
const language = languageFor([localStorage.getItem('banksman.language'), ...navigator.languages]);
const languageLoaded = setLanguage(language);
document.documentElement.lang = language;

const api = new Api({
  base: new URL('./', document.baseURI).href,
  token: () => store.token,
  onUnauthorized: () => store.unauthorized(),
});
const store = new Store({ api, session: sessionStorage, preferences: localStorage });

// Only a user who returns from the provider has a `state`; other visits do not need the module.
const signIn = new URLSearchParams(location.search).has('state') ? await import('./signin.mjs') : null;
const signedIn = await signIn?.complete(api, {
  session: sessionStorage,
  preferences: localStorage,
  location,
  history,
});
if (signedIn?.token) sessionStorage.setItem('banksman.token', signedIn.token);
store.signInError = signedIn?.error ?? null;

await languageLoaded;
render(html`<${StoreContext.Provider} value=${store}><${App} /><//>`, document.getElementById('app'));
store.start();
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
  ]),
);
