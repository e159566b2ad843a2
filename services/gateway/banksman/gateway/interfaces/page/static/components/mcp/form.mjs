/** Add a server or change one: at an address, or a program in the sandbox, with the secrets that it needs. */

import { useLayoutEffect, useRef, useState } from 'preact/hooks';

import { bodyOf, controlOf, draftOf, placeStays, valueStays } from '../../mcp_servers.mjs';
import { addressOf } from '../../router.mjs';
import { explain, parts, t } from '../../strings.mjs';
import { Check, Choice, TextField, bound } from '../fields.mjs';
import { FormError, useAction } from '../requests.mjs';
import { Dialog, IconButton, LinkButton, SmallButton, html, useStore } from '../ui.mjs';

const KINDS = /** @type {const} */ (['http', 'stdio']);
const SIGN_INS = /** @type {const} */ (['tenant', 'user']);
const MAX_SECRETS = 32;
/** @typedef {'id' | 'url' | 'command' | 'description' | 'timeoutS'} TextName */
/** @type {TextName[]} */
const TRIMMED = ['id', 'url'];

/** @typedef {{control: string | null, text: string, outdated: boolean}} Refused */
/** @typedef {ServerDraft['secrets'][number]} Secret */

export function NewServer(/** @type {{onClose: () => void}} */ { onClose }) {
  const { api } = useStore();
  const create = async (/** @type {object} */ body) => {
    const { id } = await api.call('mcp.create', {}, body);
    location.hash = addressOf('mcp', id);
  };
  return html`<${ServerForm}
    title=${t('mcp.add')}
    submitLabel=${t('mcp.connect')}
    onSubmit=${create}
    onClose=${onClose} />`;
}

/** @param {{server: McpServer, onChanged: (server: McpServer) => void, onClose: () => void}} properties the stored server */
export function ChangedServer({ server, onChanged, onClose }) {
  const { api } = useStore();
  const replace = async (/** @type {object} */ body) => {
    onChanged(await api.call('mcp.update', { server_id: server.id }, body));
    onClose();
  };
  const reload = async () => onChanged(await api.call('mcp.read', { server_id: server.id }));
  return html`<${ServerForm}
    key=${server.revision}
    title=${t('mcp.changeTitle', { name: server.id })}
    submitLabel=${t('app.save')}
    server=${server}
    onSubmit=${replace}
    onReload=${reload}
    onClose=${onClose} />`;
}

/**
 * @param {{title: string, submitLabel: string, server?: McpServer, onSubmit: (body: object) => Promise<unknown>, onReload?: () => Promise<void>, onClose: () => void}} properties
 */
function ServerForm({ title, submitLabel, server, onSubmit, onReload, onClose }) {
  const [draft, setDraft] = useState(() => draftOf(server));
  const { busy, failure, run } = useAction();
  const error = failure && {
    control: controlOf(failure),
    text: explain(failure),
    outdated: Boolean(server) && failure.code === 'conflict',
  };
  const change = (/** @type {Partial<ServerDraft>} */ fields) => setDraft({ ...draft, ...fields });
  const of = bound(draft, change);
  const submit = (/** @type {PageEvent} */ event) => {
    event.preventDefault();
    return run(() => onSubmit(bodyOf(draft, server)));
  };
  const field = (
    /** @type {TextName} */ name,
    /** @type {Key} */ label,
    /** @type {Json} */ input,
    hint = '',
  ) =>
    html`<${Field}
      of=${name}
      label=${t(label)}
      hint=${hint}
      error=${error}
      value=${draft[name]}
      onChange=${(/** @type {string} */ value) =>
        change({ [name]: TRIMMED.includes(name) ? value.trim() : value })}
      ...${input} />`;
  const hint = t('mcp.nameText');
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form class="dialog-body" onSubmit=${submit}>
      ${
        !server &&
        field(
          'id',
          'app.name',
          { required: true, autofocus: true, pattern: '[a-z][a-z0-9\\-]{0,23}', title: hint },
          hint,
        )
      }
      <${Choice}
        label=${t('mcp.kind')}
        ...${of('type')}
        options=${KINDS.map((kind) => [kind, t(`mcp.kind.${kind}`)])} />
      ${
        draft.type === 'http'
          ? field('url', 'app.address', {
              type: 'url',
              required: true,
              maxlength: 2000,
              placeholder: 'https://',
            })
          : field('command', 'mcp.command', { required: true }, t('mcp.commandText'))
      }
      ${
        draft.type === 'http' &&
        html`<${Choice}
          label=${t('mcp.signInBy')}
          ...${of('signIn')}
          options=${SIGN_INS.map((by) => [by, t(`mcp.signInBy.${by}`)])}
          ><small>${t(`mcp.signInByText.${draft.signIn}`)}</small><//
        >`
      }
      <${Secrets}
        draft=${draft}
        server=${server}
        error=${error}
        onChange=${(/** @type {Secret[]} */ secrets) => change({ secrets })} />
      ${field('description', 'mcp.description', { maxlength: 200 })}
      ${field('timeoutS', 'mcp.timeout', { type: 'number', required: true, min: 1, max: 600, step: 'any' })}
      <${Check} label=${t('mcp.trusted')} ...${of('trusted')} />
      ${
        server &&
        !placeStays(draft, server) &&
        html`<p class="notice warning" role="note">${t('mcp.placeChanges')}</p>`
      }
      <${FormError} error=${error && !error.control && (error.outdated ? t('mcp.outdated') : error.text)}>
        ${
          error?.outdated &&
          html`<${LinkButton} onClick=${() => run(() => onReload?.())}>${t('assistant.reload')}<//>`
        }
      <//>
      <div class="dialog-actions">
        <button type="button" class="button" onClick=${onClose}>${t('app.cancel')}</button>
        <button class="button primary" disabled=${busy}>
          ${busy ? html`<span class="spinner" /> ` : null}${submitLabel}
        </button>
      </div>
    </form>
  <//>`;
}

const problemId = (/** @type {string} */ control) => `mcp-problem-${control}`;

/**
 * One line of the form. Its error is shown below and gets the focus.
 *
 * @param {{of: string, hint: string, error: Refused | null} & Json} properties and those of `TextField`
 */
function Field({ of: control, hint, error, ...text }) {
  const ref = useRef(/** @type {HTMLInputElement | null} */ (null));
  const wrong = error?.control === control;
  useLayoutEffect(() => void (wrong && ref.current?.focus()), [wrong]);
  const marks = wrong ? { 'aria-invalid': true, 'aria-describedby': problemId(control) } : {};
  return html`<div class="form-field">
    <${TextField} field=${ref} ...${text} ...${marks}>${hint && html`<small>${hint}</small>`}<//>
    <${Problem} of=${control} error=${error} />
  </div>`;
}

function Problem(/** @type {{of: string, error: Refused | null}} */ { of: control, error }) {
  return error?.control === control
    ? html`<p class="form-error" role="alert" id=${problemId(control)}>${error.text}</p>`
    : null;
}

/**
 * Names with their values, which are sent once and never shown again.
 *
 * @param {{draft: ServerDraft, server?: McpServer, error: Refused | null, onChange: (secrets: Secret[]) => void}} properties
 */
function Secrets({ draft, server, error, onChange }) {
  const { type, secrets } = draft;
  const replace = (/** @type {number} */ at, /** @type {Partial<Secret>} */ fields) =>
    onChange(secrets.with(at, { ...secrets[at], ...fields }));
  const value = (/** @type {Secret} */ secret, /** @type {number} */ at) => {
    const stays = valueStays(secret, draft, server);
    return html`<input
      required=${!stays}
      type="password"
      autocomplete="off"
      aria-label=${t('app.value')}
      placeholder=${t(stays ? 'mcp.valueStays' : 'app.value')}
      value=${secret.value}
      onInput=${(event) => replace(at, { value: event.target.value })} />`;
  };
  return html`<fieldset
    class="form-field mcp-secrets"
    aria-describedby=${error?.control === 'secrets' ? problemId('secrets') : null}>
    <legend>${t(`mcp.values.${type}`)}</legend>
    <small>${parts('mcp.valuesText', { secret: html`<code>${'${secret.NAME}'}</code>` })}</small>
    ${secrets.map(
      (secret, at) =>
        html`<div key=${at}>
          <input
            required
            aria-label=${t('app.name')}
            placeholder=${t('app.name')}
            value=${secret.name}
            onInput=${(event) => replace(at, { name: event.target.value.trim() })} />
          ${value(secret, at)}
          <${IconButton}
            name="trash"
            label=${t('mcp.removeValue', { name: secret.name })}
            onClick=${() => onChange(secrets.toSpliced(at, 1))} />
        </div>`,
    )}
    <${SmallButton}
      disabled=${secrets.length >= MAX_SECRETS}
      onClick=${() => onChange([...secrets, { name: '', value: '' }])}>
      ${t(`mcp.addValue.${type}`)}
    <//>
    <${Problem} of="secrets" error=${error} />
  </fieldset>`;
}
