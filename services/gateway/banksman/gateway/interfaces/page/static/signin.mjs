/**
 * Sign-in through an OpenID Connect provider: authorization code with PKCE (RFC 7636).
 *
 * The page stores `state` and the verifier for this tab and sends the user to the provider. After the return
 * it sends the code to the gateway, which exchanges it for a token.
 */

import { RENEWABLE } from './stores/session.mjs';
import { explain, t } from './strings.mjs';

const PENDING = 'banksman.signin';
const SIGNED_OUT = 'banksman.signedOut';

const base64url = (/** @type {Uint8Array} */ bytes) =>
  btoa(String.fromCharCode(...bytes))
    .replace(/\+/g, '-')
    .replace(/\//g, '_')
    .replace(/=+$/, '');
const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));

/**
 * The address of this page without its parameters, to which the provider sends the user back.
 *
 * @param {Location} location
 */
const here = (location) => location.origin + location.pathname;

/**
 * Send the user to the provider. After a sign-out or a refused account the provider asks for the password
 * again: its session may still belong to the previous user.
 *
 * @param {Replies['sign_in.read']} provider
 * @param {{session: Storage, preferences: Storage, location: Location}} page
 */
export async function begin(provider, { session, preferences, location }) {
  const [state, verifier] = [random(), random()];
  session.setItem(PENDING, JSON.stringify({ state, verifier, hash: location.hash }));
  const challenge = base64url(
    new Uint8Array(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier))),
  );
  const url = new URL(provider.authorization_endpoint ?? '');
  const parameters = {
    ...provider.parameters,
    response_type: 'code',
    client_id: provider.client_id ?? '',
    redirect_uri: here(location),
    scope: provider.scope ?? '',
    state,
    // Some providers require one. The gateway, which knows the verifier, compares it with that of the ID token.
    nonce: challenge,
    code_challenge: challenge,
    code_challenge_method: 'S256',
    ...(preferences.getItem(SIGNED_OUT) ? { prompt: asking(provider.parameters?.prompt) } : {}),
  };
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  location.assign(url.href);
}

/**
 * The parameter `prompt` after a sign-out. Google knows no `login`: there the operator's `select_account` suffices.
 *
 * @param {string} [prompt] that of the settings
 */
function asking(prompt = '') {
  return /\b(login|select_account)\b/.test(prompt) ? prompt : `login ${prompt}`.trim();
}

/**
 * Complete a sign-in if the provider has sent the user back to this page.
 *
 * @param {Api} api
 * @param {{session: Storage, preferences: Storage, location: Location, history: History}} options
 * @returns {Promise<{token?: string, error?: string} | null>} null if the user did not return from
 *   the provider
 */
export async function complete(api, { session, preferences, location, history }) {
  const returned = new URLSearchParams(location.search);
  const pending = JSON.parse(session.getItem(PENDING) ?? 'null');
  if (!pending || !returned.has('state')) return null;
  session.removeItem(PENDING);
  // The code must not stay in the address, and a reload must not send it again.
  history.replaceState(null, '', here(location) + pending.hash);
  if (returned.get('state') !== pending.state) return { error: t('login.notOurs') };
  const code = returned.get('code');
  if (!code)
    return { error: returned.get('error_description') ?? returned.get('error') ?? t('login.failed') };
  try {
    const finished = { code, code_verifier: pending.verifier, redirect_uri: here(location) };
    const { token, renewable } = await api.call('sign_in.finish', {}, finished);
    preferences.removeItem(SIGNED_OUT);
    if (renewable) preferences.setItem(RENEWABLE, 'yes');
    else preferences.removeItem(RENEWABLE);
    return { token };
  } catch (failure) {
    // Otherwise the provider would sign in the same account at the next attempt.
    preferences.setItem(SIGNED_OUT, 'yes');
    return { error: explain(failure) };
  }
}

/**
 * End the sign-in at the provider, which may keep a session of its own. It may not respond: the page is signed out.
 *
 * @param {Api} api
 * @param {string} token the token with which the user was signed in
 * @param {Location} location
 */
export async function endSession(api, token, location) {
  const ended = await api.call('sign_in.end').catch(() => null);
  if (!ended?.end_session_endpoint || !ended.client_id) return;
  const url = new URL(ended.end_session_endpoint);
  url.searchParams.set('client_id', ended.client_id);
  if (ended.takes_token) url.searchParams.set('id_token_hint', token);
  location.assign(url.href);
}
