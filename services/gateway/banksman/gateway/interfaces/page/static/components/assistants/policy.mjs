/** The rules that decide which calls wait for approval. The first rule that matches a call decides. */

import { t } from '../../strings.mjs';
import { LateInput } from '../fields.mjs';
import { IconButton, SmallButton, html } from '../ui.mjs';

const ACTIONS = /** @type {const} */ (['ask', 'auto', 'deny']);

/** @param {{value: Rule[], onChange: (rules: Rule[]) => void, title?: string}} properties */
export function Policy({ value: rules, onChange, title = t('assistant.policy') }) {
  const replace = (/** @type {number} */ at, /** @type {Partial<Rule>} */ fields) =>
    onChange(rules.map((rule, other) => (other === at ? { ...rule, ...fields } : rule)));
  const up = (/** @type {number} */ at) => onChange(rules.with(at - 1, rules[at]).with(at, rules[at - 1]));
  return html`<fieldset class="assistant-part stack">
    <legend>${title}</legend>
    <p class="muted">${t('assistant.policyText')}</p>
    <ol class="policy stack">
      ${rules.map(
        (rule, at) =>
          html`<${Rule}
            key=${at}
            rule=${rule}
            first=${at === 0}
            onChange=${(/** @type {Partial<Rule>} */ fields) => replace(at, fields)}
            onUp=${() => up(at)}
            onRemove=${() => onChange(rules.toSpliced(at, 1))} />`,
      )}
    </ol>
    <${SmallButton} onClick=${() => onChange([...rules, { tool: 'bash', arguments: {}, action: 'ask' }])}>
      ${t('assistant.addRule')}
    <//>
  </fieldset>`;
}

/**
 * One rule. Only the pattern of its first argument can be edited; patterns of other arguments stay unchanged.
 *
 * @param {{rule: Rule, first: boolean, onChange: (fields: Partial<Rule>) => void, onUp: () => void, onRemove: () => void}} properties
 */
function Rule({ rule, first, onChange, onUp, onRemove }) {
  const [name = '', pattern = ''] = Object.entries(rule.arguments ?? {})[0] ?? [];
  const others = Object.fromEntries(Object.entries(rule.arguments ?? {}).slice(1));
  const setArgument = (/** @type {string} */ key, /** @type {string} */ value) =>
    onChange({ arguments: key ? { [key]: value, ...others } : others });
  return html`<li>
    <select
      aria-label=${t('assistant.ruleAction')}
      value=${rule.action}
      onChange=${(event) => onChange({ action: /** @type {Rule['action']} */ (event.target.value) })}>
      ${ACTIONS.map(
        (action) => html`<option key=${action} value=${action}>${t(`assistant.action.${action}`)}</option>`,
      )}
    </select>
    <input
      aria-label=${t('assistant.ruleTool')}
      value=${rule.tool ?? '*'}
      required
      maxlength="128"
      onInput=${(event) => onChange({ tool: event.target.value })} />
    <${LateInput}
      aria-label=${t('assistant.ruleArgument')}
      placeholder=${'command'}
      value=${name}
      onChange=${(/** @type {string} */ written) => setArgument(written, pattern || '*')} />
    <input
      aria-label=${t('assistant.rulePattern')}
      placeholder=${'rm *'}
      value=${pattern}
      disabled=${!name}
      onInput=${(event) => setArgument(name, event.target.value)} />
    <${IconButton} name="up" label=${t('assistant.ruleUp')} disabled=${first} onClick=${onUp} />
    <${IconButton} name="trash" label=${t('assistant.ruleRemove')} onClick=${onRemove} />
  </li>`;
}
