/** Which tools an assistant's model may call. */

import { t } from '../../strings.mjs';
import { Box, Choice, TextField, bound } from '../fields.mjs';
import { useRead } from '../requests.mjs';
import { html, useStore } from '../ui.mjs';

/** @param {{value: Assistant['tools'], onChange: (tools: Assistant['tools']) => void}} properties `allowed_tools` is null for every tool */
export function ToolChoice({ value: tools, onChange }) {
  const { api } = useStore();
  // A user without the right to list tools can still remove the tools that the assistant names.
  const { value: offered } = useRead(() => api.items('tool.list'));
  const { value: options } = useRead(() => api.call('workspace.options'));
  const allowed = tools.allowed_tools ?? null;
  const names = [...new Set([...(offered ?? []).map((tool) => tool.name), ...(allowed ?? [])])];
  const change = (/** @type {Partial<Assistant['tools']>} */ fields) => onChange({ ...tools, ...fields });
  const of = bound(tools, change);
  const toggle = (/** @type {string} */ name) =>
    change({
      allowed_tools: allowed?.includes(name)
        ? allowed.filter((one) => one !== name)
        : [...(allowed ?? []), name],
    });
  return html`<fieldset class="assistant-part stack">
    <legend>${t('assistant.tools')}</legend>
    <${Box} label=${t('assistant.toolsOn')} ...${of('enabled')} />
    ${
      tools.enabled &&
      html`<${Box}
        label=${t('assistant.allTools')}
        value=${allowed === null}
        onChange=${(/** @type {boolean} */ all) => change({ allowed_tools: all ? null : names })} />`
    }
    ${
      tools.enabled &&
      allowed !== null &&
      html`<div class="tool-choice">
        ${names.map(
          (name) =>
            html`<${Box}
              key=${name}
              label=${html`<code>${name}</code>`}
              value=${allowed.includes(name)}
              onChange=${() => toggle(name)} />`,
        )}
      </div>`
    }
    ${
      tools.enabled &&
      html`<div class="limit-fields">
        <${TextField}
          label=${t('assistant.iterations')}
          value=${tools.max_iterations ?? 10}
          onChange=${(/** @type {string} */ count) => change({ max_iterations: Number(count) })}
          type="number"
          min="1"
          max="1000"
          required />
        <${Choice}
          label=${t('assistant.onReject')}
          ...${of('on_reject')}
          value=${tools.on_reject ?? 'abort'}
          options=${
            /** @type {const} */ (['abort', 'feedback']).map((name) => [
              name,
              t(`assistant.onReject.${name}`),
            ])
          } />
        <${Toolchain} offered=${options?.toolchains ?? []} ...${of('toolchain')} />
      </div>`
    }
  </fieldset>`;
}

/** @typedef {{value?: string | null, offered: string[], onChange: (toolchain: string | null) => void}} ToolchainProperties */

/** The operator's programs for commands; a chosen one that no runner offers any more stays until it is replaced. @param {ToolchainProperties} properties */
function Toolchain({ value: chosen, offered, onChange }) {
  if (!offered.length && !chosen) return null;
  const isGone = chosen && !offered.includes(chosen);
  const gone = isGone ? [[chosen, t('assistant.toolchainGone', { name: chosen })]] : [];
  return html`<${Choice}
    label=${t('assistant.toolchain')}
    value=${chosen ?? ''}
    onChange=${(/** @type {string} */ name) => onChange(name || null)}
    options=${[['', t('assistant.noToolchain')], ...gone, ...offered.map((name) => [name, name])]} />`;
}
