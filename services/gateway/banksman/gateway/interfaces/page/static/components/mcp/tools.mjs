/** The tools of a server: those offered to agents, and those that wait for the approval of an administrator. */

import { t } from '../../strings.mjs';
import { Diff } from '../diff.mjs';
import { Exact, html } from '../ui.mjs';

/**
 * New and changed tools. Texts of a server are instructions to a model, so they are shown in full.
 *
 * @param {{server: McpServer, busy: boolean, onApprove: () => void}} properties
 */
export function Changes({ server, busy, onApprove }) {
  const { changes } = server;
  if (!changes.length) return null;
  const count = changes.length;
  return html`<section class="mcp-part" aria-label=${t('mcp.changes', { count })}>
    <h2>${t('mcp.changes', { count })}</h2>
    <p class="muted">${t('mcp.changesText')}</p>
    <ul class="mcp-tools">
      ${changes.map(
        (tool) =>
          html`<${Tool} key=${tool.name} tool=${tool} mark=${t(`mcp.tool.${kindOf(tool)}`)}>
            ${
              tool.replaces &&
              kindOf(tool) === 'changed' &&
              html`<${Diff} path=${tool.tool} before=${textOf(tool.replaces)} after=${textOf(tool)} />`
            }
          <//>`,
      )}
    </ul>
    <button type="button" class="button primary" disabled=${busy} onClick=${onApprove}>
      ${t('mcp.approve', { count })}
    </button>
  </section>`;
}

export function Approved(/** @type {{server: McpServer}} */ { server }) {
  const reasons = new Map(server.refused.map((refused) => [refused.name, refused.reason]));
  const unusable = server.refused.filter(({ name }) => !server.tools.some((tool) => tool.name === name));
  return html`<section class="mcp-part" aria-label=${t('mcp.tools')}>
    <h2>${t('mcp.tools')}</h2>
    ${!server.tools.length && html`<p class="muted">${t('mcp.noTools')}</p>`}
    <ul class="mcp-tools">
      ${server.tools.map(
        (tool) =>
          html`<${Tool} key=${tool.name} tool=${tool}>
            ${
              reasons.has(tool.name) &&
              html`<p class="form-error" role="alert">
                ${t('mcp.refused', { reason: reasons.get(tool.name) })}
              </p>`
            }
          <//>`,
      )}
      ${unusable.map(
        ({ name, reason }) =>
          html`<li class="card" key=${`unusable ${name}`}>
            <p>
              <code class="tool-name"><${Exact} text=${name} /></code>
            </p>
            <p class="form-error" role="alert">${t('mcp.refused', { reason })}</p>
          </li>`,
      )}
    </ul>
  </section>`;
}

function Tool(/** @type {{tool: McpTool, mark?: string, children?: unknown}} */ { tool, mark, children }) {
  return html`<li class="card">
    <p>
      <code class="tool-name"><${Exact} text=${tool.name} /></code>
      ${mark && html`<span class="status running">${mark}</span> `}<span class="badge"
        >${t(tool.requires_approval ? 'mcp.asks' : 'mcp.asksNot')}</span
      >
    </p>
    ${tool.description && html`<p class="mcp-description"><${Exact} text=${tool.description} /></p>`}
    ${children}
    <details>
      <summary>${t('mcp.schema')}</summary>
      <pre tabindex="0"><${Exact} text=${JSON.stringify(tool.input_schema, null, 2)} /></pre>
    </details>
  </li>`;
}

/** If a server reverts a change, the tool equals its approved version again. @param {McpTool} tool */
function kindOf(tool) {
  if (!tool.replaces) return 'new';
  return textOf(tool.replaces) === textOf(tool) ? 'restored' : 'changed';
}

/** The parts of a tool that an administrator approves, as lines. @param {Pick<McpTool, 'description' | 'input_schema' | 'requires_approval'>} tool */
function textOf({ description, input_schema: schema, requires_approval: asks }) {
  return `${description}\n\n${JSON.stringify(schema, null, 2)}\n\n${t(asks ? 'mcp.asks' : 'mcp.asksNot')}\n`;
}
