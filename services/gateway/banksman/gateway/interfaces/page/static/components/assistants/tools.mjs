/** Which tools an assistant's model may call. */

import { t } from '../../strings.mjs';
import { Box, Choice, TextField } from '../fields.mjs';
import { useRead } from '../requests.mjs';
import { html, useStore } from '../ui.mjs';

/** @param {{tools: Assistant['tools'], onChange: (tools: Partial<Assistant['tools']>) => void}} properties `allowed_tools` is null for every tool */
export function ToolChoice({ tools, onChange }) {
  const { api } = useStore();
  // A user without the right to list tools can still remove the tools that the assistant names.
  const { value: offered } = useRead(() => api.items('tool.list'));
  const { value: options } = useRead(() => api.call('workspace.options'));
  const allowed = tools.allowed_tools ?? null;
  const names = [...new Set([...(offered ?? []).map((tool) => tool.name), ...(allowed ?? [])])];
  const toggle = (/** @type {string} */ name) =>
    onChange({
      allowed_tools: allowed?.includes(name)
        ? allowed.filter((one) => one !== name)
        : [...(allowed ?? []), name],
    });
  return html`<fieldset class="assistant-part stack">
    <legend>${t('assistant.tools')}</legend>
    <${Box}
      label=${t('assistant.toolsOn')}
      value=${tools.enabled}
      onChange=${(/** @type {boolean} */ enabled) => onChange({ enabled })} />
    ${
      tools.enabled &&
      html`<${Box}
        label=${t('assistant.allTools')}
        value=${allowed === null}
        onChange=${(/** @type {boolean} */ all) => onChange({ allowed_tools: all ? null : names })} />`
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
          onChange=${(/** @type {string} */ count) => onChange({ max_iterations: Number(count) })}
          type="number"
          min="1"
          max="1000"
          required />
        <${Choice}
          label=${t('assistant.onReject')}
          value=${tools.on_reject ?? 'abort'}
          onChange=${(/** @type {Assistant['tools']['on_reject']} */ choice) =>
            onChange({ on_reject: choice })}
          options=${
            /** @type {const} */ (['abort', 'feedback']).map((name) => [
              name,
              t(`assistant.onReject.${name}`),
            ])
          } />
        <${Toolchain}
          chosen=${tools.toolchain ?? null}
          offered=${options?.toolchains ?? []}
          onChange=${(/** @type {string | null} */ toolchain) => onChange({ toolchain })} />
      </div>`
    }
  </fieldset>`;
}

/** @typedef {{chosen: string | null, offered: string[], onChange: (toolchain: string | null) => void}} ToolchainProperties */

/** The operator's programs for commands; a chosen one that no runner offers any more stays until it is replaced. @param {ToolchainProperties} properties */
function Toolchain({ chosen, offered, onChange }) {
  if (!offered.length && !chosen) return null;
  const isGone = chosen && !offered.includes(chosen);
  const gone = isGone ? [[chosen, t('assistant.toolchainGone', { name: chosen })]] : [];
  return html`<${Choice}
    label=${t('assistant.toolchain')}
    value=${chosen ?? ''}
    onChange=${(/** @type {string} */ name) => onChange(name || null)}
    options=${[['', t('assistant.noToolchain')], ...gone, ...offered.map((name) => [name, name])]} />`;
}
