/** The list of conversations: its pages, and the pinned conversations. */

import { signal } from '@preact/signals';

import { explain } from '../strings.mjs';

const REFRESH_DELAY_MS = 400;
const MAX_PINNED = 50;
/** How many entries a refresh reads, more than most screens show: the gateway reads the log of each. */
const NEWEST = 15;
const MAX_PAGE = 200;

export class ConversationList {
  constructor(/** @type {{api: import('../client/api.mjs').Api}} */ { api }) {
    this.api = api;
    /** @type {Signal<Listed<Listing> & {next: string | null, archived: boolean, label: string | null}>} */
    this.state = signal({ items: [], next: null, loading: true, error: null, archived: false, label: null });
    this.pinned = signal(/** @type {Listing[]} */ ([]));
    /** The labels that were seen in this visit, sorted. */
    this.labels = signal(/** @type {string[]} */ ([]));
  }

  /** Read the newest entries, and as far as one works, after a short delay; several calls within it cause one read. */
  refresh() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      const working = this.state.value.items.findLastIndex(({ status }) => status !== 'idle') + 1;
      this.#read(null, Math.min(MAX_PAGE, Math.max(NEWEST, working)));
    }, REFRESH_DELAY_MS);
  }

  /** Read the first page and the pinned conversations. @returns {Promise<unknown>} */
  read() {
    return Promise.all([this.#readPinned(), this.#read(null)]);
  }

  more() {
    return this.#read(this.state.value.next);
  }

  /** List the archived conversations, or the others. @param {boolean} archived */
  showArchived(archived) {
    this.state.value = { ...this.state.value, archived, items: [], next: null, loading: true };
    this.#read(null);
  }

  /** List only the conversations with a label; null lists all. @param {string | null} label */
  showLabel(label) {
    this.state.value = { ...this.state.value, label, archived: false, items: [], next: null, loading: true };
    this.#read(null);
  }

  /** The entry of a conversation; undefined if the loaded pages do not contain it. @param {string} id */
  find(id) {
    return this.state.value.items.find((item) => item.conversation_id === id);
  }

  /** Show a conversation that was just created. @param {Listing} record */
  add(record) {
    this.state.value = { ...this.state.value, items: [record, ...this.state.value.items] };
  }

  setTitle(/** @type {string} */ id, /** @type {string} */ title) {
    const renamed = (/** @type {Listing[]} */ items) =>
      items.map((item) => (item.conversation_id === id ? { ...item, title } : item));
    this.state.value = { ...this.state.value, items: renamed(this.state.value.items) };
    this.pinned.value = renamed(this.pinned.value);
  }

  drop(/** @type {string} */ id) {
    const others = (/** @type {Listing[]} */ items) => items.filter((item) => item.conversation_id !== id);
    this.state.value = { ...this.state.value, items: others(this.state.value.items) };
    this.pinned.value = others(this.pinned.value);
  }

  /** Read a page; what was read before and follows the first one stays. */
  async #read(/** @type {string | null} */ cursor, /** @type {number | undefined} */ limit = undefined) {
    const { archived, label } = this.state.value;
    try {
      const page = await this.api.conversations({ cursor, archived, label, limit });
      const { value: before } = this.state;
      if (archived !== before.archived || label !== before.label) return;
      this.#seen(page.items);
      const { items, next } = cursor
        ? { ...page, items: [...before.items, ...page.items] }
        : followed(page, before);
      this.state.value = { ...before, items, next, loading: false, error: null };
    } catch (error) {
      this.state.value = { ...this.state.value, loading: false, error: explain(error) };
    }
  }

  #seen(/** @type {Listing[]} */ items) {
    const all = new Set([...this.labels.value, ...items.flatMap((item) => item.labels ?? [])]);
    if (all.size > this.labels.value.length) this.labels.value = [...all].sort();
  }

  /** A page of a long list may end before it found all. */
  async #readPinned() {
    /** @type {Listing[]} */
    const found = [];
    let cursor = null;
    try {
      do {
        const page = await this.api.conversations({ pinned: true, limit: MAX_PINNED, cursor });
        found.push(...page.items.filter((item) => item.pinned));
        cursor = page.next;
      } while (cursor && found.length < MAX_PINNED);
    } catch {
      return;
    }
    this.#seen(found);
    this.pinned.value = found;
  }
}

/**
 * The newest entries, and those that followed the last of them.
 *
 * @param {{items: Listing[], next: string | null}} page
 * @param {{items: Listing[], next: string | null}} before
 */
function followed(page, before) {
  const ids = page.items.map((item) => item.conversation_id);
  const at = before.items.findLastIndex((item) => item.conversation_id === ids.at(-1));
  const later = page.next
    ? before.items.slice(at + 1).filter((item) => !ids.includes(item.conversation_id))
    : [];
  return { items: [...page.items, ...later], next: later.length ? before.next : page.next };
}
