/** A prompt of an MCP server: its arguments are filled in, and its text goes into the message box. */

import { t } from '../strings.mjs';
import { Dialog, Exact, html, useStore } from './ui.mjs';
import { SchemaForm } from './workflows.mjs';

/**
 * @param {object} properties
 * @param {Item<'mcp.prompts'>} properties.prompt
 * @param {(text: string) => void} properties.onInsert
 * @param {() => void} properties.onClose
 */
export function PromptDialog({ prompt, onInsert, onClose }) {
  const { api } = useStore();
  const get = async (/** @type {Json} */ values) =>
    onInsert(
      (await api.call('mcp.prompt', { server_id: prompt.server }, { name: prompt.name, arguments: values }))
        .text,
    );
  return html`<${Dialog} title=${prompt.title || prompt.name} onClose=${onClose}>
    <div class="dialog-body">
      <p class="muted">${t('prompt.server', { server: prompt.server })}</p>
      ${prompt.description && html`<p><${Exact} text=${prompt.description} /></p>`}
      <${SchemaForm} schema=${schemaOf(prompt)} submitLabel=${t('prompt.insert')} onSubmit=${get} />
    </div>
  <//>`;
}

/** A form for the arguments of a prompt, which are texts. @param {Item<'mcp.prompts'>} prompt @returns {Schema} */
function schemaOf({ arguments: given }) {
  const fields = given.map(({ name, description }) => [name, { type: 'string', description }]);
  const required = given.filter((one) => one.required).map(({ name }) => name);
  return { type: 'object', properties: Object.fromEntries(fields), required };
}
