/** One call of an approval request: its effect, its exact arguments, and the fields to edit them. */

import { useLayoutEffect, useRef } from 'preact/hooks';

import { t } from '../../strings.mjs';
import { Diff } from '../diff.mjs';
import { toolIcon } from '../icons.mjs';
import { Exact, Icon, LinkButton, html } from '../ui.mjs';
import { Changes } from './scope.mjs';

/** @typedef {import('../../decisions.mjs').Draft} Draft */

/**
 * @param {{item: ApprovalItem, single: boolean, choice: Decision | undefined, onChoice: (decision: Decision) => void, edit: Edit | undefined, onToggleEdit: () => void, onEdit: (draft: Draft) => void}} properties
 */
export function Call({ item, single, choice, onChoice, edit, onToggleEdit, onEdit }) {
  const shown = edit?.value && !edit.problem ? edit.value : item.arguments;
  const id = item.tool_call_id;
  return html`<li class=${`approval-item ${choice ?? ''}`} data-call=${id}>
    <div class="approval-item-head wrap soft">
      <${Icon} name=${toolIcon(item.name)} size=${16} />
      <span class="tool-name"><${Exact} text=${item.name} /></span>
      ${edit?.changed && html`<span class="badge">${t('approval.edited')}</span>`}
      ${
        !single &&
        html`<span class="choice" role="group" aria-label=${t('approval.decide', { tool: item.name })}>
          <button type="button" aria-pressed=${choice === 'approve'} onClick=${() => onChoice('approve')}>
            ${t('approval.approve')}
          </button>
          <button type="button" aria-pressed=${choice === 'reject'} onClick=${() => onChoice('reject')}>
            ${t('approval.reject')}
          </button>
        </span>`
      }
      ${
        item.editable !== false &&
        html`<button type="button" class="link edit" aria-expanded=${Boolean(edit)} onClick=${onToggleEdit}>
          ${t(edit ? 'approval.undoEdit' : 'app.edit')} ${!edit && html`<kbd aria-hidden="true">E</kbd>`}
        </button>`
      }
    </div>
    ${item.requested && html`<${Changes} item=${item} />`}
    <${Preview} item=${item} shown=${shown} />
    ${
      edit
        ? html`<${Editor} id=${id} edit=${edit} onEdit=${onEdit} />`
        : html`<${ExactArguments} item=${item} />`
    }
  </li>`;
}

/**
 * One field for each argument, so that file content is edited without JSON escapes; JSON for a new argument.
 *
 * @param {{id: string, edit: Edit, onEdit: (draft: Draft) => void}} properties
 */
function Editor({ id, edit, onEdit }) {
  const root = useRef(/** @type {HTMLElement | null} */ (null));
  const { fields = [], json } = edit.draft;
  useLayoutEffect(() => longestOf([...(root.current?.querySelectorAll('textarea') ?? [])])?.focus(), []);
  const asJson = () =>
    onEdit({
      json: JSON.stringify(
        edit.value ?? Object.fromEntries(fields.map(({ name, text }) => [name, text])),
        null,
        2,
      ),
    });
  const change = (/** @type {string} */ name, /** @type {string} */ text) =>
    onEdit({ fields: fields.map((field) => (field.name === name ? { ...field, text } : field)) });
  /** @param {string} name @param {string} label @param {string} text @param {(text: string) => void} onChange */
  const area = (name, label, text, onChange) =>
    html`<label for=${`edit-${id}-${name}`}>${label}</label>
      <textarea
        id=${`edit-${id}-${name}`}
        spellcheck=${false}
        rows=${Math.min(16, text.split('\n').length)}
        value=${text}
        aria-invalid=${Boolean(edit.problem)}
        aria-describedby=${`edit-${id}-problem`}
        onInput=${(event) => onChange(event.target.value)} />`;
  return html`<div class="approval-editor" ref=${root}>
    ${
      json === undefined
        ? fields.map(({ name, label, text, isText }) =>
            area(name, isText ? label : t('approval.jsonField', { label }), text, (next) =>
              change(name, next),
            ),
          )
        : area('json', t('approval.jsonArguments'), json, (next) => onEdit({ json: next }))
    }
    <p class="form-error" id=${`edit-${id}-problem`} role="status">${edit.problem ?? ''}</p>
    ${json === undefined && html`<${LinkButton} onClick=${asJson}>${t('approval.editJson')}<//>`}
  </div>`;
}

function longestOf(/** @type {HTMLTextAreaElement[]} */ areas) {
  return areas.toSorted((one, other) => other.value.length - one.value.length)[0];
}

function ExactArguments(/** @type {{item: ApprovalItem}} */ { item }) {
  const text = item.exact ?? JSON.stringify(item.arguments, null, 2);
  return html`<details
    class="exact"
    open=${Boolean(item.exact) || item.preview?.kind === 'text' || !item.preview}>
    <summary class="muted">
      ${t('approval.exact')}
      <span class="digest" title=${item.digest}>${item.digest ? `#${item.digest.slice(0, 8)}` : ''}</span>
    </summary>
    ${item.exact && html`<p class="muted">${t('approval.exactNumbers')}</p>`}
    <pre tabindex="0"><${Exact} text=${text} /></pre>
  </details>`;
}

function Preview(/** @type {{item: ApprovalItem, shown: Json}} */ { item, shown }) {
  const { preview } = item;
  if (Array.isArray(shown.edits))
    return shown.edits.map(
      (edit) =>
        html`<${Diff}
          path=${String(shown.path)}
          before=${String(edit?.old_text)}
          after=${String(edit?.new_text)} />`,
    );
  switch (preview.kind) {
    case 'command':
      return html`<pre
        class="preview command"
        tabindex="0"><${Exact} text=${String(shown.command ?? preview.command ?? '')} /></pre>`;
    case 'url':
      return html`<p class="preview url"><${Exact} text=${String(shown.url ?? preview.url ?? '')} /></p>`;
    case 'diff':
      return html`<${Diff}
        path=${String(shown.path ?? preview.path ?? '')}
        before=${preview.old ?? null}
        after=${String(shown.content ?? preview.new ?? '')} />`;
    default:
      return preview.text
        ? html`<pre class="preview" tabindex="0"><${Exact} text=${preview.text} /></pre>`
        : null;
  }
}
