/** Begin a conversation whose workspace starts from a git repository or an archive. */

import { useState } from 'preact/hooks';

import { explain, parts, t } from '../strings.mjs';
import { FormDialog, TextField } from './fields.mjs';
import { FormError, useRead } from './requests.mjs';
import { html, useStore } from './ui.mjs';

/** @typedef {{repository: string, branch: string, depth: string, secret: string}} Draft */

/** @type {Draft} */
const EMPTY = { repository: '', branch: '', depth: '1', secret: '' };

const sourceOf = (/** @type {Draft} */ { repository, branch, depth, secret }) => ({
  repository,
  depth: Number(depth),
  ...(branch ? { branch } : {}),
  ...(secret ? { secret } : {}),
});

export function RepositoryDialog(/** @type {{onClose: () => void}} */ { onClose }) {
  const { api, conversations } = useStore();
  const [draft, setDraft] = useState(EMPTY);
  const { value: options, error } = useRead(() => api.call('workspace.options'));
  const [archive, setArchive] = useState(/** @type {File | null} */ (null));
  const [refused, setRefused] = useState(/** @type {Failure | null} */ (null));
  const submit = async () => {
    try {
      await (archive ? conversations.beginFromArchive(archive) : conversations.beginFrom(sourceOf(draft)));
      onClose();
    } catch (thrown) {
      const failure = /** @type {Failure} */ (thrown);
      setRefused(failure);
      if (archive || !failure.field) throw failure;
    }
  };
  const wrong = refused?.field?.replace('source.', '');
  /** @param {keyof Draft} name @param {object} input @param {unknown} [hint] */
  const field = (name, input, hint) =>
    html`<${TextField}
      label=${t(`repository.${name}`)}
      value=${draft[name]}
      onChange=${(/** @type {string} */ value) => setDraft({ ...draft, [name]: value.trim() })}
      aria-invalid=${wrong === name}
      ...${input}
      >${hint && html`<small>${hint}</small>`}
      ${wrong === name && html`<span class="form-error" role="alert">${explain(refused)}</span>`}<//
    >`;
  return html`<${FormDialog}
    title=${t('welcome.repository')}
    label=${t('repository.begin')}
    onSubmit=${submit}
    onClose=${onClose}>
    <p class="muted">${t('repository.intro')}</p>
    <label class="form-field"
      ><span>${t('repository.archive')}</span
      ><input
        type="file"
        accept=".zip,.tar,.tgz,.tar.gz,.tar.bz2,.tar.xz"
        onChange=${(/** @type {PageEvent} */ event) => setArchive(event.target.files?.[0] ?? null)} /><small
        >${t('repository.archiveText')}</small
      ></label
    >
    ${field(
      'repository',
      {
        type: 'url',
        required: !archive,
        disabled: Boolean(archive),
        maxlength: 2000,
        placeholder: 'https://…/project.git',
      },
      options && allowedWords(options.repositories),
    )}
    ${field('branch', { maxlength: 200, placeholder: t('repository.defaultBranch') })}
    ${field(
      'depth',
      { type: 'number', required: true, min: 0, max: 100_000, step: 1 },
      t('repository.depthText'),
    )}
    ${field('secret', { maxlength: 64, autocomplete: 'off' }, t('repository.secretText'))}
    <${FormError} error=${error} />
  <//>`;
}

function allowedWords(/** @type {string[]} */ patterns) {
  if (!patterns.length) return t('repository.noneAllowed');
  return parts('repository.allowed', {
    patterns: patterns.map((pattern, at) => html`${at > 0 && ', '}<code>${pattern}</code>`),
  });
}
