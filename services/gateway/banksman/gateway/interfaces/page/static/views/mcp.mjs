/** MCP servers: their state, tools and sign-ins. */

import { useEffect, useState } from 'preact/hooks';

import { NewServer } from '../components/mcp/form.mjs';
import { OneServer } from '../components/mcp/server.mjs';
import { State, placeOf } from '../components/mcp/state.mjs';
import { Exact, Icon, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { addressOf } from '../router.mjs';
import { explain, t } from '../strings.mjs';

/** @param {{path: string[]}} properties empty for the list, or the id of a server; then `ended` after a sign-in that expired */
export default function McpView({ path: [id, note] }) {
  return id ? html`<${OneServer} key=${id} id=${id} ended=${note === 'ended'} />` : html`<${ServerList} />`;
}

function ServerList() {
  const store = useStore();
  const [servers, setServers] = useState(/** @type {McpServer[] | null} */ (null));
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const [adding, setAdding] = useState(false);
  useEffect(() => void store.api.mcpServers().then(setServers, (failure) => setError(explain(failure))), []);
  const actions = html`<button type="button" class="button primary" onClick=${() => setAdding(true)}>
    <${Icon} name="plus" size=${16} />${t('mcp.add')}
  </button>`;
  return html`<${Frame} title=${t('mcp.title')} actions=${actions}>
    <p class="muted">${t('mcp.intro')}</p>
    ${error && html`<p class="form-error" role="alert">${error}</p>`}
    ${!servers && !error && html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`}
    ${servers?.length === 0 && html`<p class="empty">${t('mcp.none')}</p>`}
    <ul class="assistants">
      ${servers?.map(
        (server) =>
          html`<li key=${server.id}>
            <a href=${addressOf('mcp', server.id)}
              ><strong>${server.id}</strong><span class="muted"><${Exact} text=${placeOf(server)} /></span
            ></a>
            <${State} server=${server} />
          </li>`,
      )}
    </ul>
    ${adding && html`<${NewServer} onClose=${() => setAdding(false)} />`}
  <//>`;
}
