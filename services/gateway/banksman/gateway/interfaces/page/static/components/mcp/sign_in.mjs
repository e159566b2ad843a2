/** The OAuth sign-in at a server: the browser goes to its authorization server and returns here. */

import { useState } from 'preact/hooks';

import { parts, t } from '../../strings.mjs';
import { formatWhen } from '../../text.mjs';
import { TextField } from '../fields.mjs';
import { html, useStore } from '../ui.mjs';

/** @param {{server: McpServer, act: (request: () => Promise<McpServer>) => Promise<void>}} properties */
export function SignIn({ server, act }) {
  const { api } = useStore();
  const [client, setClient] = useState({ client_id: '', client_secret: '' });
  // A server may refuse the token of a sign-in.
  const signedIn = server.needs_sign_in ? null : server.signed_in;
  const own = server.sign_in === 'user';
  if (!signedIn && !server.needs_sign_in) return null;
  const begin = (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    return act(() => goToProvider(api, server, client));
  };
  const end = () =>
    act(async () => {
      await api.call('mcp.sign_out', { server_id: server.id });
      return api.call('mcp.read', { server_id: server.id });
    });
  const field = (/** @type {'client_id' | 'client_secret'} */ name, /** @type {string} */ type) =>
    html`<${TextField}
      label=${t(`mcp.${name}`)}
      value=${client[name]}
      onChange=${(/** @type {string} */ value) => setClient({ ...client, [name]: value.trim() })}
      type=${type}
      autocomplete="off"
      maxlength="2000" />`;
  return html`<section class="mcp-part" aria-label=${t('login.submit')}>
    <h2>${t('mcp.account')}</h2>
    <p class="muted">
      ${
        signedIn
          ? t(own ? 'mcp.signedInOwn' : 'mcp.signedIn', {
              user: signedIn.user,
              when: formatWhen(signedIn.at),
            })
          : t(own ? 'mcp.signInOwnText' : 'mcp.signInText')
      }
    </p>
    <form class="mcp-sign-in" onSubmit=${begin}>
      <div class="row-actions">
        <button class=${signedIn ? 'button' : 'button primary'}>
          ${t(signedIn ? 'accounts.again' : 'login.submit')}
        </button>
        ${
          signedIn &&
          html`<button type="button" class="button" onClick=${end}>${t('sidebar.signOut')}</button>`
        }
      </div>
      <details>
        <summary>${t('mcp.ownClient')}</summary>
        <p class="muted">
          ${parts('mcp.ownClientText', { address: html`<code>${api.mcpCallbackUrl()}</code>` })}
        </p>
        ${field('client_id', 'text')}${field('client_secret', 'password')}
      </details>
    </form>
  </section>`;
}

/**
 * Leave this page; the authorization server sends the browser back to the view of the server.
 *
 * @param {Api} api
 * @param {McpServer} server
 * @param {Record<string, string>} client
 */
async function goToProvider(api, server, client) {
  const given = Object.fromEntries(Object.entries(client).filter(([, value]) => value));
  const asked = { gateway_url: new URL('./', document.baseURI).href, to_page: true, ...given };
  const { url } = await api.call('mcp.sign_in', { server_id: server.id }, asked);
  location.assign(url);
  return server;
}
