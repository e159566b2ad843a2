/** The login form of a gateway that requires a token. The token is stored in this browser until the user signs out. */

import { useState } from 'preact/hooks';

import { t } from '../strings.mjs';
import { FormError, useRead } from './requests.mjs';
import { LinkButton, Mark, html, useStore } from './ui.mjs';

export function Login() {
  const { api, session } = useStore();
  const [token, setToken] = useState('');
  const { value: provider, error } = useRead(() => api.call('sign_in.read'));
  // An account has a JSON Web Token, which always expires.
  const refused = session.token && t(session.token.split('.').length === 3 ? 'login.expired' : 'login.wrong');
  const { optional } = session.connection.value;
  const submit = (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    if (token.trim()) session.login(token.trim());
  };
  const signIn = async () => {
    const { begin } = await import('../signin.mjs');
    if (provider) await begin(provider, { session: sessionStorage, preferences: localStorage, location });
  };
  return html`<main class="login">
    <form onSubmit=${submit}>
      <${Mark} size=${48} />
      <h1>Banksman</h1>
      <p class="soft">${t('login.intro')}</p>
      <${FormError} error=${error ?? session.signInError} />
      <${FormError} error=${refused} />
      ${
        provider?.authorization_endpoint &&
        html`<button type="button" class="button primary" onClick=${signIn}>${t('login.account')}</button>`
      }
      <label for="token">${t('app.key')}</label>
      <input
        id="token"
        type="password"
        autocomplete="current-password"
        autofocus
        value=${token}
        onInput=${(event) => setToken(event.target.value)} />
      <button class="button primary" disabled=${!token.trim()}>${t('login.submit')}</button>
      ${optional && html`<${LinkButton} onClick=${() => session.reconnect()}>${t('login.without')}<//>`}
    </form>
  </main>`;
}
