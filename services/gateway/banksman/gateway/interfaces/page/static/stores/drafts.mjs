/**
 * What the user has written, attached and chosen in each conversation, kept in this browser until it is sent.
 *
 * Texts are in the local storage, which is written at once; files are in a database, which is loaded on demand.
 */

import { effect, signal } from '@preact/signals';

const PREFIX = 'banksman.draft.';
const MOST = 50;
/** @typedef {{text: string, files: File[], model: string | null}} Draft */
/** @type {Draft} */
const EMPTY = { text: '', files: [], model: null };

export class Drafts {
  /** What the user wrote in forms and has not saved, for this visit. @type {Map<string, import('@preact/signals').Signal<any>>} */
  #forms = new Map();

  /**
   * @param {object} options
   * @param {Storage} options.preferences
   * @param {import('@preact/signals').Signal<string | null>} options.currentId the open conversation; null for a new one
   */
  constructor({ preferences, currentId }) {
    this.preferences = preferences;
    this.currentId = currentId;
    /** Drafts of this visit by conversation, with '' for a new one. */
    this.changed = signal(/** @type {Record<string, Draft>} */ ({}));
    /** Whose drafts are shown; null before the first welcome. */
    this.user = signal(/** @type {string | null} */ (null));
    this.text = this.#field('text');
    this.files = this.#field('files');
    this.model = this.#field('model');
    effect(() => void this.#loadFiles(this.currentId.value ?? '', this.user.value));
  }

  /** Show the drafts of a user; one that was begun before the sign-in becomes theirs. @param {string} user */
  show(user) {
    if (this.user.value !== null && this.user.value !== user) this.changed.value = {};
    this.user.value = user;
    for (const id of Object.keys(this.changed.value)) this.#keep(id);
  }

  /** A draft for a new conversation goes on in the conversation that was created. @param {string} id */
  created(id) {
    this.#change(id, { ...this.#of('') });
    this.#change('', EMPTY);
  }

  /** What the user has written in a form; null if nothing. @param {string} name */
  form(name) {
    const written = this.#forms.get(name) ?? signal(null);
    this.#forms.set(name, written);
    return written;
  }

  /** Put a message that was not sent before what the user has written since. @param {string} id @param {string} text @param {File[]} [files] */
  returned(id, text, files = []) {
    const draft = this.#of(id);
    const both = [text, draft.text].filter(Boolean).join('\n\n');
    this.#change(id, { text: both, ...(files.length && { files: [...files, ...draft.files] }) });
  }

  /** Forget all drafts of this browser, at a sign-out. */
  async clear() {
    this.changed.value = {};
    for (const written of this.#forms.values()) written.value = null;
    for (const key of this.#keys()) this.preferences.removeItem(key);
    await import('../draft_files.mjs').then(({ clear }) => clear()).catch(() => {});
  }

  /** @template {keyof Draft} Name @param {Name} name */
  #field(name) {
    const drafts = this;
    return {
      /** @returns {Draft[Name]} */
      get value() {
        return drafts.#of(drafts.currentId.value ?? '')[name];
      },
      set value(value) {
        drafts.#change(drafts.currentId.value ?? '', { [name]: value });
      },
    };
  }

  /** @param {string} id @returns {Draft} */
  #of(id) {
    return this.changed.value[id] ?? { ...EMPTY, ...this.#stored(id) };
  }

  #change(/** @type {string} */ id, /** @type {Partial<Draft>} */ change) {
    const draft = { ...this.#of(id), ...change };
    this.changed.value = { ...this.changed.value, [id]: draft };
    this.#keep(id);
    if (change.files && this.user.value !== null) this.#keepFiles(id, draft.files);
  }

  #stored(/** @type {string} */ id) {
    if (this.user.value === null) return null;
    const { text, model } = JSON.parse(this.preferences.getItem(this.#key(id)) ?? '{}');
    return { ...(text && { text }), ...(model && { model }) };
  }

  #keep(/** @type {string} */ id) {
    if (this.user.value === null) return;
    const { text, files, model } = this.changed.value[id];
    if (!text && !files.length && !model) return this.preferences.removeItem(this.#key(id));
    const draft = JSON.stringify({ text, model, files: files.length, at: Date.now() });
    try {
      this.preferences.setItem(this.#key(id), draft);
    } catch {
      // The storage is full: the draft stays in this tab.
    }
    this.#dropOldest();
  }

  #dropOldest() {
    const keys = this.#keys();
    if (keys.length <= MOST) return;
    const age = (/** @type {string} */ key) => JSON.parse(this.preferences.getItem(key) ?? '{}').at;
    for (const key of keys.toSorted((one, other) => age(one) - age(other)).slice(0, -MOST))
      this.preferences.removeItem(key);
  }

  async #keepFiles(/** @type {string} */ id, /** @type {File[]} */ files) {
    const { put } = await import('../draft_files.mjs');
    await put(this.#key(id), files).catch(() => {});
  }

  async #loadFiles(/** @type {string} */ id, /** @type {string | null} */ user) {
    if (user === null || this.changed.peek()[id]) return;
    const key = this.#key(id);
    if (!JSON.parse(this.preferences.getItem(key) ?? '{}').files) return;
    const { get } = await import('../draft_files.mjs');
    const files = await get(key).catch(() => []);
    const draft = this.#of(id);
    if (!draft.files.length) this.changed.value = { ...this.changed.peek(), [id]: { ...draft, files } };
  }

  #keys() {
    return Object.keys(this.preferences).filter((key) => key.startsWith(PREFIX));
  }

  #key(/** @type {string} */ id) {
    return `${PREFIX}${this.user.peek()}/${id}`;
  }
}
