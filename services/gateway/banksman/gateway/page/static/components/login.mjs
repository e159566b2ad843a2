/** The login form of a gateway that requires a token. The token is stored for this tab only. */

import { useEffect, useState } from 'preact/hooks';

import { begin } from '../signin.mjs';
import { Mark, html, useStore } from './ui.mjs';

export function Login() {
  const store = useStore();
  const [token, setToken] = useState('');
  const [provider, setProvider] = useState(null);
  const [failure, setFailure] = useState(store.signInError);
  const refused = Boolean(store.token);
  useEffect(() => {
    store.api.provider().then(setProvider, (error) => setFailure(error.message));
  }, []);
  const submit = (event) => {
    event.preventDefault();
    if (token.trim()) store.login(token.trim());
  };
  const signIn = () => begin(provider, { session: sessionStorage, location });
  return html`<main class="login">
    <form onSubmit=${submit}>
      <${Mark} size=${48} />
      <h1>Banksman</h1>
      <p>This gateway requires a token.</p>
      ${failure && html`<p class="form-error" role="alert">${failure}</p>`}
      ${refused && html`<p class="form-error" role="alert">The token is wrong or has expired.</p>`}
      ${provider?.authorization_endpoint && html`<button type="button" class="button primary" onClick=${signIn}>Sign in with your account</button>`}
      <label for="token">Token</label>
      <input id="token" type="password" autocomplete="current-password" autofocus value=${token} onInput=${(event) => setToken(event.target.value)} />
      <button class="button primary" disabled=${!token.trim()}>Sign in</button>
    </form>
  </main>`;
}
