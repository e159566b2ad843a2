/** What components read and send: the state of a request, and what is shown while it waits or after it failed. */

import { useEffect, useRef, useState } from 'preact/hooks';

import { explain, t } from '../strings.mjs';
import { LinkButton, Loading, html, useStore } from './ui.mjs';

/** Why something failed, with what may help; nothing without an error. @param {{error?: string | null, children?: Shown}} properties */
export function FormError({ error, children }) {
  return error ? html`<p class="form-error" role="alert">${error} ${children}</p>` : null;
}

/** The state of what is read, with a button to try again. @param {{of: {value: unknown, error: string | null, read: () => void}}} properties */
export function Reading({ of: { value, error, read } }) {
  if (!error) return value === null ? html`<${Loading} />` : null;
  return html`<${FormError} error=${error}>
    <${LinkButton} onClick=${read}>${t('app.tryAgain')}<//>
  <//>`;
}

/** A list without entries, and the action that adds the first. @param {{text: string, children: Shown}} properties */
export function Empty({ text, children }) {
  return html`<div class="empty">
    <p>${text}</p>
    ${children}
  </div>`;
}

/**
 * The result of a request, which is sent again when a key changes and by `read`. Only the last request counts.
 *
 * @template T
 * @param {(() => Promise<T>) | null | false | undefined | ""} load without it, nothing is read
 * @param {unknown[]} [keys]
 * @param {T | null} [initial]
 */
export function useRead(load, keys = [], initial = null) {
  /** @typedef {{value: T | null, error: string | null}} Read */
  const [state, setState] = useState(/** @type {Read} */ ({ value: initial, error: null }));
  const last = useRef(0);
  const show = (/** @type {T} */ value) => setState({ value, error: null });
  const fail = (/** @type {unknown} */ failure) =>
    setState((before) => ({ ...before, error: explain(failure) }));
  const read = async () => {
    if (!load) return;
    const request = ++last.current;
    await load().then(
      (value) => request === last.current && show(value),
      (failure) => request === last.current && fail(failure),
    );
  };
  useEffect(() => {
    read();
    return () => void (last.current += 1);
  }, keys);
  return { ...state, read, show, fail };
}

/**
 * What the user writes in a form: it stays when the form is left, for this visit, until it is set to null.
 *
 * @template T
 * @param {string} name of the form
 * @returns {[T | null, (value: T | null | ((before: T | null) => T | null)) => void]}
 */
export function useKept(name) {
  const written = useStore().drafts.form(name);
  const set = (/** @type {any} */ value) =>
    (written.value = typeof value === 'function' ? value(written.peek()) : value);
  return [written.value, set];
}

/**
 * An action at the request of the user: whether it still runs, and why the last one failed.
 *
 * @returns {{busy: boolean, error: string | null, failure: Failure | null, run: (action: () => unknown) => Promise<void>}}
 */
export function useAction() {
  const [state, setState] = useState({ busy: false, failure: /** @type {Failure | null} */ (null) });
  const run = async (/** @type {() => unknown} */ action) => {
    setState({ busy: true, failure: null });
    try {
      await action();
      setState({ busy: false, failure: null });
    } catch (failure) {
      setState({ busy: false, failure: /** @type {Failure} */ (failure) });
    }
  };
  return { ...state, error: state.failure && explain(state.failure), run };
}
