/** Which tools an assistant's model may call. */

import { useEffect, useState } from 'preact/hooks';

import { t } from '../../strings.mjs';
import { html, useStore } from '../ui.mjs';

/** @param {{tools: Assistant['tools'], onChange: (tools: Partial<Assistant['tools']>) => void}} properties `allowed_tools` is null for every tool */
export function ToolChoice({ tools, onChange }) {
  const store = useStore();
  const [offered, setOffered] = useState(/** @type {string[]} */ ([]));
  const [toolchains, setToolchains] = useState(/** @type {string[]} */ ([]));
  // A user without the right to list tools can still remove the tools that the assistant names.
  useEffect(
    () =>
      void store.api.tools().then(
        (items) => setOffered(items.map((tool) => tool.name)),
        () => {},
      ),
    [],
  );
  useEffect(
    () =>
      void store.api.workspaceOptions().then(
        (options) => setToolchains(options.toolchains ?? []),
        () => {},
      ),
    [],
  );
  const allowed = tools.allowed_tools ?? null;
  const names = [...new Set([...offered, ...(allowed ?? [])])];
  const toggle = (/** @type {string} */ name) =>
    onChange({
      allowed_tools: allowed?.includes(name)
        ? allowed.filter((one) => one !== name)
        : [...(allowed ?? []), name],
    });
  return html`<fieldset class="assistant-part">
    <legend>${t('assistant.tools')}</legend>
    <label class="check-row"
      ><input
        type="checkbox"
        checked=${tools.enabled}
        onChange=${(event) => onChange({ enabled: event.target.checked })}
      />
      ${t('assistant.toolsOn')}</label
    >
    ${tools.enabled && html`<label class="check-row"><input type="checkbox" checked=${allowed === null} onChange=${(event) => onChange({ allowed_tools: event.target.checked ? null : names })} /> ${t('assistant.allTools')}</label>`}
    ${
      tools.enabled &&
      allowed !== null &&
      html`<div class="tool-choice">
        ${names.map((name) => html`<label key=${name} class="check-row"><input type="checkbox" checked=${allowed.includes(name)} onChange=${() => toggle(name)} /> <code>${name}</code></label>`)}
      </div>`
    }
    ${
      tools.enabled &&
      html`<div class="limit-fields">
        <label class="form-field"
          ><span>${t('assistant.iterations')}</span
          ><input
            type="number"
            min="1"
            max="1000"
            required
            value=${tools.max_iterations ?? 10}
            onInput=${(event) => onChange({ max_iterations: Number(event.target.value) })}
        /></label>
        <label class="form-field"
          ><span>${t('assistant.onReject')}</span>
          <select
            value=${tools.on_reject ?? 'abort'}
            onChange=${(event) => onChange({ on_reject: /** @type {Assistant['tools']['on_reject']} */ (event.target.value) })}
          >
            <option value="abort">${t('assistant.onReject.abort')}</option>
            <option value="feedback">${t('assistant.onReject.feedback')}</option>
          </select>
        </label>
        <${Toolchain}
          chosen=${tools.toolchain ?? null}
          offered=${toolchains}
          onChange=${(/** @type {string | null} */ toolchain) => onChange({ toolchain })}
        />
      </div>`
    }
  </fieldset>`;
}

/** @typedef {{chosen: string | null, offered: string[], onChange: (toolchain: string | null) => void}} ToolchainProperties */

/** The operator's programs for commands; a chosen one that no runner offers any more stays until it is replaced. @param {ToolchainProperties} properties */
function Toolchain({ chosen, offered, onChange }) {
  if (!offered.length && !chosen) return null;
  const isGone = chosen && !offered.includes(chosen);
  return html`<label class="form-field"
    ><span>${t('assistant.toolchain')}</span>
    <select value=${chosen ?? ''} onChange=${(event) => onChange(event.target.value || null)}>
      <option value="">${t('assistant.noToolchain')}</option>
      ${isGone && html`<option value=${chosen}>${t('assistant.toolchainGone', { name: chosen })}</option>`}
      ${offered.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select>
  </label>`;
}
