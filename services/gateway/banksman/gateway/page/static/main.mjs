/** Compose the page: API client, store, components. */

import { render } from 'preact';

import { Api } from './client/api.mjs';
import { App } from './components/app.mjs';
import { StoreContext, html } from './components/ui.mjs';
import { complete } from './signin.mjs';
import { Store } from './store.mjs';

const api = new Api({
  base: new URL('./', document.baseURI).href,
  token: () => store.token,
  onUnauthorized: () => store.unauthorized(),
});
const store = new Store({ api, session: sessionStorage, preferences: localStorage });

const signedIn = await complete(api, { session: sessionStorage, location, history });
if (signedIn?.token) sessionStorage.setItem('banksman.token', signedIn.token);
store.signInError = signedIn?.error ?? null;

render(html`<${StoreContext.Provider} value=${store}><${App} /><//>`, document.getElementById('app'));
store.start();
