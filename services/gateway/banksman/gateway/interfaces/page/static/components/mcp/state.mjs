/** The state of a server as a short text. */

import { t } from '../../strings.mjs';
import { html } from '../ui.mjs';

const TONES = { signIn: 'failed', failed: 'failed', waits: 'running', ready: 'done', unknown: '' };

/** The address of a server, or its program with arguments. @param {McpServer} mcpServer */
export function placeOf({ transport }) {
  return transport.url ?? transport.command?.join(' ');
}

export function State(/** @type {{server: McpServer}} */ { server }) {
  const state = stateOf(server);
  return html`<span class=${`status ${TONES[state]}`}>${t(`mcp.state.${state}`)}</span>`;
}

function stateOf(/** @type {McpServer} */ server) {
  if (server.needs_sign_in) return 'signIn';
  if (server.problem) return 'failed';
  if (server.changes.length) return 'waits';
  return server.found_at ? 'ready' : 'unknown';
}
