/** Begin a conversation whose workspace starts from a git repository. */

import { useEffect, useState } from 'preact/hooks';

import { explain, parts, t } from '../strings.mjs';
import { Dialog, html, useStore } from './ui.mjs';

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
  const store = useStore();
  const [draft, setDraft] = useState(EMPTY);
  const [allowed, setAllowed] = useState(/** @type {string[] | null} */ (null));
  const [error, setError] = useState(
    /** @type {{field?: string, code?: string, message: string} | null} */ (null),
  );
  const [busy, setBusy] = useState(false);
  useEffect(
    () => void store.api.workspaceOptions().then(({ repositories }) => setAllowed(repositories), setError),
    [],
  );
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await store.beginFrom(sourceOf(draft));
      onClose();
    } catch (failure) {
      setError(/** @type {any} */ (failure));
      setBusy(false);
    }
  };
  const wrong = error?.field?.replace('source.', '');
  /** @param {keyof Draft} name @param {object} input @param {unknown} [hint] */
  const field = (name, input, hint) =>
    html`<label class="form-field"
      ><span>${t(`repository.${name}`)}</span
      ><input
        value=${draft[name]}
        aria-invalid=${wrong === name}
        onInput=${(/** @type {any} */ event) => setDraft({ ...draft, [name]: event.target.value.trim() })}
        ...${input}
      />${hint && html`<small>${hint}</small>`}
      ${wrong === name && error && html`<span class="form-error" role="alert">${explain(error)}</span>`}</label
    >`;
  return html`<${Dialog} title=${t('welcome.repository')} onClose=${onClose}>
    <form class="dialog-body" onSubmit=${submit}>
      <p class="muted">${t('repository.intro')}</p>
      ${field('repository', { type: 'url', required: true, maxlength: 2000, placeholder: 'https://…/project.git' }, allowed && allowedWords(allowed))}
      ${field('branch', { maxlength: 200, placeholder: t('repository.defaultBranch') })}
      ${field('depth', { type: 'number', required: true, min: 0, max: 100_000, step: 1 }, t('repository.depthText'))}
      ${field('secret', { maxlength: 64, autocomplete: 'off' }, t('repository.secretText'))}
      ${error && !wrong && html`<p class="form-error" role="alert">${explain(error)}</p>`}
      <div class="dialog-actions">
        <button type="button" class="button" onClick=${onClose}>${t('app.cancel')}</button>
        <button class="button primary" disabled=${busy}>${t('repository.begin')}</button>
      </div>
    </form>
  <//>`;
}

function allowedWords(/** @type {string[]} */ patterns) {
  if (!patterns.length) return t('repository.noneAllowed');
  return parts('repository.allowed', {
    patterns: patterns.map((pattern, at) => html`${at > 0 && ', '}<code>${pattern}</code>`),
  });
}
