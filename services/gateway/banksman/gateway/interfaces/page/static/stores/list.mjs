/** The list of conversations: its pages, and the pinned conversations. */

import { signal } from '@preact/signals';

import { explain } from '../strings.mjs';

const REFRESH_DELAY_MS = 400;
const MAX_PINNED = 50;

export class ConversationList {
  constructor(/** @type {{api: import('../client/api.mjs').Api}} */ { api }) {
    this.api = api;
    /** @type {Signal<Listed<Listing> & {next: string | null, archived: boolean, label: string | null}>} */
    this.state = signal({ items: [], next: null, loading: true, error: null, archived: false, label: null });
    this.pinned = signal(/** @type {Listing[]} */ ([]));
    /** The labels that were seen in this visit, sorted. */
    this.labels = signal(/** @type {string[]} */ ([]));
  }

  /** Read the first page after a short delay; several calls within the delay cause one read. */
  refresh() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#read(null), REFRESH_DELAY_MS);
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

  async #read(/** @type {string | null} */ cursor) {
    const { archived, label } = this.state.value;
    try {
      const page = await this.api.conversations({ cursor, archived, label });
      if (archived !== this.state.value.archived || label !== this.state.value.label) return;
      this.#seen(page.items);
      const items = cursor ? [...this.state.value.items, ...page.items] : page.items;
      this.state.value = { ...this.state.value, items, next: page.next, loading: false, error: null };
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
