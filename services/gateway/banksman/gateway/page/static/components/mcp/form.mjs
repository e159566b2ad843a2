/** Add a server: at an address, or a program in the sandbox, with the secrets that it needs. */

import { useState } from 'preact/hooks';

import { addressOf } from '../../router.mjs';
import { explain, parts, t } from '../../strings.mjs';
import { Dialog, IconButton, html, useStore } from '../ui.mjs';

const KINDS = ['http', 'stdio'];
const EMPTY = { id: '', type: 'http', url: '', command: '', secrets: [], trusted: false };
const MAX_SECRETS = 32;

export function NewServer({ onClose }) {
  const store = useStore();
  const [draft, setDraft] = useState(EMPTY);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const change = (fields) => setDraft({ ...draft, ...fields });
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const { id } = await store.api.createMcpServer(bodyOf(draft));
      location.hash = addressOf('mcp', id);
    } catch (failure) {
      setError(explain(failure));
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${t('mcp.add')} onClose=${onClose}>
    <form class="dialog-body" onSubmit=${submit}>
      <label class="form-field"><span>${t('mcp.name')}</span>
        <input required autofocus pattern="[a-z][a-z0-9\\-]{0,23}" title=${t('mcp.nameText')} value=${draft.id} onInput=${(event) => change({ id: event.target.value.trim() })} />
        <small>${t('mcp.nameText')}</small>
      </label>
      <label class="form-field"><span>${t('mcp.kind')}</span>
        <select value=${draft.type} onChange=${(event) => change({ type: event.target.value })}>
          ${KINDS.map((kind) => html`<option value=${kind}>${t(`mcp.kind.${kind}`)}</option>`)}
        </select>
      </label>
      ${draft.type === 'http'
        ? html`<label class="form-field"><span>${t('mcp.url')}</span><input type="url" required maxlength="2000" placeholder=${'https://'} value=${draft.url} onInput=${(event) => change({ url: event.target.value.trim() })} /></label>`
        : html`<label class="form-field"><span>${t('mcp.command')}</span>
            <input required value=${draft.command} onInput=${(event) => change({ command: event.target.value })} /><small>${t('mcp.commandText')}</small>
          </label>`}
      <${Secrets} type=${draft.type} secrets=${draft.secrets} onChange=${(secrets) => change({ secrets })} />
      <div class="form-field check"><label><input type="checkbox" checked=${draft.trusted} onChange=${(event) => change({ trusted: event.target.checked })} />${t('mcp.trusted')}</label></div>
      ${error && html`<p class="form-error" role="alert">${error}</p>`}
      <div class="dialog-actions">
        <button type="button" class="button" onClick=${onClose}>${t('app.cancel')}</button>
        <button class="button primary" disabled=${busy}>${busy ? html`<span class="spinner" /> ` : null}${t('mcp.connect')}</button>
      </div>
    </form>
  <//>`;
}

/** Names with their values, which are sent once and never shown again. */
function Secrets({ type, secrets, onChange }) {
  const replace = (at, fields) => onChange(secrets.with(at, { ...secrets[at], ...fields }));
  return html`<fieldset class="form-field mcp-secrets">
    <legend>${t(`mcp.values.${type}`)}</legend>
    <small>${parts('mcp.valuesText', { secret: html`<code>${'${secret.NAME}'}</code>` })}</small>
    ${secrets.map(
      (secret, at) => html`<div key=${at}>
        <input required aria-label=${t('mcp.valueName')} placeholder=${t('mcp.valueName')} value=${secret.name} onInput=${(event) => replace(at, { name: event.target.value.trim() })} />
        <input required type="password" autocomplete="off" aria-label=${t('mcp.value')} placeholder=${t('mcp.value')} value=${secret.value} onInput=${(event) => replace(at, { value: event.target.value })} />
        <${IconButton} name="trash" label=${t('mcp.removeValue', { name: secret.name })} onClick=${() => onChange(secrets.toSpliced(at, 1))} />
      </div>`,
    )}
    <button type="button" class="button small" disabled=${secrets.length >= MAX_SECRETS} onClick=${() => onChange([...secrets, { name: '', value: '' }])}>${t(`mcp.addValue.${type}`)}</button>
  </fieldset>`;
}

function bodyOf({ id, type, url, command, secrets, trusted }) {
  const values = Object.fromEntries(secrets.map(({ name, value }) => [name, value]));
  const transport = type === 'http' ? { type, url, headers: values } : { type, command: wordsOf(command), env: values };
  return { id, transport, trusted };
}

/** The words of a command: separated by spaces that are not in quotes. */
function wordsOf(command) {
  const words = command.match(/(?:"[^"]*"|'[^']*'|[^\s"'])+/g) ?? [];
  return words.map((word) => word.replaceAll(/"([^"]*)"|'([^']*)'/g, '$1$2'));
}
