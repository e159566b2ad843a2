/** One server: its state with the reason, its sign-in, its changed tools, and the tools offered to agents. */

import { useEffect, useState } from 'preact/hooks';

import { addressOf } from '../../router.mjs';
import { explain, parts, reasonOf, t } from '../../strings.mjs';
import { formatDuration, formatWhen } from '../../text.mjs';
import { FormDialog } from '../fields.mjs';
import { FormError } from '../requests.mjs';
import { Action, Exact, Icon, Loading, SmallButton, html, useStore } from '../ui.mjs';
import { Frame } from '../view.mjs';
import { ChangedServer } from './form.mjs';
import { SignIn } from './sign_in.mjs';
import { State, placeOf } from './state.mjs';
import { Approved, Changes } from './tools.mjs';

/** @param {{id: string, ended: boolean}} properties `ended`: true if the sign-in had expired when the browser returned */
export function OneServer({ id, ended }) {
  const store = useStore();
  const { server, error, busy, act } = useServer(store, id);
  const [dialog, setDialog] = useState(/** @type {string | null} */ (null));
  const close = () => setDialog(null);
  const actions = html`<${Action} icon="back" text=${t('mcp.title')} href=${addressOf('mcp')} />`;
  return html`<${Frame} title=${id} actions=${actions}>
    <${FormError} error=${error} />
    ${
      ended &&
      html`<p class="notice warning" role="note">
        <${Icon} name="warning" size=${15} /><span>${t('mcp.signInEnded')}</span>
      </p>`
    }
    ${!server && !error && html`<${Loading} />`}
    ${
      server &&
      html`<${Summary}
          server=${server}
          busy=${busy}
          onLook=${() => act(() => store.api.call('mcp.look', { server_id: id }))}
          onChange=${() => setDialog('change')}
          onRemove=${() => setDialog('removal')} />
        <${SignIn} server=${server} act=${act} />
        <${Changes} server=${server} busy=${busy} onApprove=${() => act(() => approved(store.api, server))} />
        <${Approved} server=${server} />`
    }
    ${
      dialog === 'change' &&
      html`<${ChangedServer}
        server=${server}
        onChanged=${(/** @type {McpServer} */ changed) => act(async () => changed)}
        onClose=${close} />`
    }
    ${dialog === 'removal' && html`<${Removal} id=${id} onClose=${close} />`}
  <//>`;
}

/** @typedef {{server: McpServer | null, error: string | null, busy: boolean}} ServerState */

/**
 * The server in the last reply. `act` sends another request, one at a time.
 *
 * @param {Store} store
 * @param {string} id
 */
function useServer(store, id) {
  const [state, setState] = useState(/** @type {ServerState} */ ({ server: null, error: null, busy: true }));
  const act = async (/** @type {() => Promise<McpServer>} */ request) => {
    setState((before) => ({ ...before, busy: true }));
    try {
      setState({ server: await request(), error: null, busy: false });
    } catch (thrown) {
      const failure = /** @type {Failure & {server?: McpServer}} */ (thrown);
      setState((before) => ({
        server: failure.server ?? before.server,
        error: explain(failure),
        busy: false,
      }));
    }
  };
  useEffect(() => void act(() => store.api.call('mcp.read', { server_id: id })), [id]);
  return { ...state, act };
}

/**
 * Approve the shown tools. After a change of the server nothing is approved, and the error contains the current server.
 *
 * @param {Api} api
 * @param {McpServer} server
 */
async function approved(api, server) {
  try {
    return await api.call('mcp.approve', { server_id: server.id }, { digest: server.changes_digest ?? '' });
  } catch (failure) {
    if (/** @type {Failure} */ (failure).code !== 'conflict') throw failure;
    throw Object.assign(new Error(t('mcp.changedMeanwhile')), {
      server: await api.call('mcp.read', { server_id: server.id }),
    });
  }
}

/**
 * @param {{server: McpServer, busy: boolean, onLook: () => void, onChange: () => void, onRemove: () => void}} properties
 */
function Summary({ server, busy, onLook, onChange, onRemove }) {
  const { transport } = server;
  return html`<section class="mcp-summary" aria-label=${t('mcp.state')}>
    <p>
      <${State} server=${server} />${' '}${
        server.found_at &&
        html`<span class="muted">${t('mcp.found', { when: formatWhen(server.found_at) })}</span>`
      }
    </p>
    ${
      server.problem &&
      html`<p class="notice warning" role="note">
        <${Icon} name="warning" size=${15} /><span
          ><${Exact} text=${reasonOf(`mcp.problem.${server.problem_code}`, server.problem)}
        /></span>
      </p>`
    }
    ${server.description && html`<p>${server.description}</p>`}
    <p>
      <code><${Exact} text=${placeOf(server)} /></code>
    </p>
    ${
      transport.secrets.length > 0 &&
      html`<p class="muted">
        ${parts(`mcp.secrets.${transport.type}`, {
          names: html`<code>${transport.secrets.join(', ')}</code>`,
        })}
      </p>`
    }
    ${server.trusted && html`<p class="muted">${t('mcp.trusted')}</p>`}
    <p class="muted">${t('mcp.callTimeout', { duration: formatDuration(server.timeout_s * 1000) })}</p>
    <p class="muted">
      ${t('mcp.createdBy', { user: server.created_by, when: formatWhen(server.created_at) })}
    </p>
    <div class="row-actions">
      <${SmallButton} disabled=${busy} onClick=${onLook}>
        <${Icon} name="refresh" size=${14} />${t('mcp.look')}
      <//>
      <${SmallButton} disabled=${busy} onClick=${onChange}>
        <${Icon} name="pencil" size=${14} />${t('app.change')}
      <//>
      <${SmallButton} onClick=${onRemove}> <${Icon} name="trash" size=${14} />${t('app.remove')}<//>
    </div>
  </section>`;
}

function Removal(/** @type {{id: string, onClose: () => void}} */ { id, onClose }) {
  const { api } = useStore();
  return html`<${FormDialog}
    title=${t('mcp.removeTitle')}
    label=${t('app.remove')}
    danger
    onSubmit=${() => api.call('mcp.delete', { server_id: id }).then(() => (location.hash = addressOf('mcp')))}
    onClose=${onClose}>
    <p>${parts('mcp.removeQuestion', { name: html`<strong>${id}</strong>` })}</p>
  <//>`;
}
