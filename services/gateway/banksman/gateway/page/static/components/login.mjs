/** The login form of a gateway that requires a token. The token is stored for this tab only. */

import { useState } from 'preact/hooks';

import { Mark, html, useStore } from './ui.mjs';

export function Login() {
  const store = useStore();
  const [token, setToken] = useState('');
  const refused = Boolean(store.token);
  const submit = (event) => {
    event.preventDefault();
    if (token.trim()) store.login(token.trim());
  };
  return html`<main class="login">
    <form onSubmit=${submit}>
      <${Mark} size=${48} />
      <h1>Banksman</h1>
      <p>This gateway requires a token.</p>
      ${refused && html`<p class="form-error" role="alert">The token is wrong or has expired.</p>`}
      <label for="token">Token</label>
      <input id="token" type="password" autocomplete="current-password" autofocus value=${token} onInput=${(event) => setToken(event.target.value)} />
      <button class="button primary" disabled=${!token.trim()}>Sign in</button>
    </form>
  </main>`;
}
