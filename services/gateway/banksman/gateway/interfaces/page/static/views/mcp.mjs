/** MCP servers: their state, tools and sign-ins. */

import { useState } from 'preact/hooks';

import { NewServer } from '../components/mcp/form.mjs';
import { OneServer } from '../components/mcp/server.mjs';
import { State, placeOf } from '../components/mcp/state.mjs';
import { Empty, Reading, useRead } from '../components/requests.mjs';
import { AddButton, Exact, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { addressOf } from '../router.mjs';
import { t } from '../strings.mjs';

/** @param {{path: string[]}} properties empty for the list, or the id of a server; then `ended` after a sign-in that expired */
export default function McpView({ path: [id, note] }) {
  return id ? html`<${OneServer} key=${id} id=${id} ended=${note === 'ended'} />` : html`<${ServerList} />`;
}

function ServerList() {
  const { api } = useStore();
  const read = useRead(() => api.items('mcp.list'));
  const [adding, setAdding] = useState(false);
  const isEmpty = read.value?.length === 0;
  const actions = html`<${AddButton} label=${t('mcp.add')} onClick=${() => setAdding(true)} />`;
  return html`<${Frame} title=${t('mcp.title')} actions=${!isEmpty && actions}>
    <p class="muted">${t('mcp.intro')}</p>
    <${Reading} of=${read} />
    ${isEmpty && html`<${Empty} text=${t('mcp.none')}>${actions}<//>`}
    <ul class="assistants">
      ${read.value?.map(
        (server) =>
          html`<li class="wrap card" key=${server.id}>
            <a href=${addressOf('mcp', server.id)}
              ><strong>${server.id}</strong
              ><span class="muted text-s"><${Exact} text=${placeOf(server)} /></span
            ></a>
            <${State} server=${server} />
          </li>`,
      )}
    </ul>
    ${adding && html`<${NewServer} onClose=${() => setAdding(false)} />`}
  <//>`;
}
