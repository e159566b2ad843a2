/** The registries of packages that commands of the tenant may install from. */

import { t } from '../../strings.mjs';
import { LateInput, namesIn } from '../fields.mjs';
import { useRead } from '../requests.mjs';
import { IconButton, SmallButton, html, useStore } from '../ui.mjs';

/** @typedef {{kind: 'npm' | 'pypi', url: string, hosts?: string[], assistants?: string[] | null}} Registry */

/** @type {Registry['kind'][]} */
const KINDS = ['pypi', 'npm'];

/** @param {{value?: Registry[], onChange: (registries: Registry[]) => void}} properties */
export function Registries({ value: registries = [], onChange }) {
  const { api } = useStore();
  const { value: options } = useRead(() => api.call('workspace.options'));
  const permitted = options?.registries;
  const replace = (/** @type {number} */ at, /** @type {Partial<Registry>} */ fields) =>
    onChange(registries.map((one, other) => (other === at ? { ...one, ...fields } : one)));
  return html`<fieldset class="assistant-part stack">
    <legend>${t('registries.title')}</legend>
    <p class="muted">${t('registries.text')}</p>
    ${
      permitted &&
      html`<p class="muted">
        ${
          permitted.length
            ? t('registries.permitted', { hosts: permitted.join(', ') })
            : t('registries.noneOffered')
        }
      </p>`
    }
    <ul class="registries">
      ${registries.map(
        (one, at) =>
          html`<${Row}
            key=${at}
            one=${one}
            onChange=${(/** @type {Partial<Registry>} */ fields) => replace(at, fields)}
            onRemove=${() => onChange(registries.toSpliced(at, 1))} />`,
      )}
    </ul>
    <${SmallButton} onClick=${() => onChange([...registries, { kind: 'pypi', url: '' }])}>
      ${t('registries.add')}
    <//>
  </fieldset>`;
}

/** @param {{one: Registry, onChange: (fields: Partial<Registry>) => void, onRemove: () => void}} properties */
function Row({ one, onChange, onRemove }) {
  const valueOf = (/** @type {any} */ event) => event.target.value.trim();
  return html`<li>
    <select
      aria-label=${t('registries.kind')}
      value=${one.kind}
      onChange=${(/** @type {Event} */ event) => onChange({ kind: valueOf(event) })}>
      ${KINDS.map((kind) => html`<option key=${kind} value=${kind}>${t(`registries.kind.${kind}`)}</option>`)}
    </select>
    <input
      type="url"
      required
      maxlength="500"
      aria-label=${t('registries.url')}
      placeholder=${'https://…/simple'}
      value=${one.url}
      onInput=${(/** @type {Event} */ event) => onChange({ url: valueOf(event) })} />
    <${LateInput}
      aria-label=${t('registries.hosts')}
      placeholder=${t('registries.hosts')}
      value=${(one.hosts ?? []).join(', ')}
      onChange=${(/** @type {string} */ written) => onChange({ hosts: namesIn(written) })} />
    <${LateInput}
      aria-label=${t('registries.assistants')}
      placeholder=${t('registries.everyAssistant')}
      value=${(one.assistants ?? []).join(', ')}
      onChange=${(/** @type {string} */ names) => onChange({ assistants: names ? namesIn(names) : null })} />
    <${IconButton} name="trash" label=${t('registries.remove')} onClick=${onRemove} />
  </li>`;
}
