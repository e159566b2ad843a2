/** What a user does with whole conversations: begins, marks, renames, imports and removes them. */

import { signal } from '@preact/signals';

import { t } from '../strings.mjs';

export class Conversations {
  #titled = new Set();
  /** What the last import did; null while it is not shown. */
  imported = signal(/** @type {import('../importing.mjs').Imported[] | null} */ (null));

  /**
   * @param {object} options
   * @param {import('../client/api.mjs').Api} options.api
   * @param {import('./list.mjs').ConversationList} options.list
   * @param {import('./navigation.mjs').Navigation} options.navigation
   * @param {import('./opened.mjs').OpenConversations} options.opened
   * @param {import('./outbox.mjs').Outbox} options.outbox
   * @param {import('./toasts.mjs').Toasts} options.toasts
   */
  constructor({ api, list, navigation, opened, outbox, toasts }) {
    this.api = api;
    this.list = list;
    this.navigation = navigation;
    this.opened = opened;
    this.outbox = outbox;
    this.toasts = toasts;
  }

  /** Begin a conversation with an assistant. @param {string} assistant */
  begin(assistant) {
    this.outbox.assistant.value = assistant;
    this.navigation.open(null);
  }

  /** Begin a conversation whose workspace starts from a repository. @param {{repository: string}} source */
  async beginFrom(source) {
    this.#begun(await this.#create({ source }));
  }

  /** Begin a conversation whose workspace starts from an archive of this device. @param {File} file */
  async beginFromArchive(file) {
    const created = await this.#create({});
    const id = created.conversation_id;
    try {
      await this.api.upload(id, file.name, file);
      await this.api.call('file.unpack', { conversation_id: id }, { path: file.name });
    } catch (failure) {
      await this.api.deleteConversation(id);
      throw failure;
    }
    this.#begun(created);
  }

  #create(/** @type {{source?: {repository: string}}} */ options) {
    const assistant = this.outbox.assistant.value;
    return this.api.call('conversation.create', {}, { ...options, ...(assistant ? { assistant } : {}) });
  }

  #begun(/** @type {Replies['conversation.create']} */ created) {
    this.outbox.assistant.value = null;
    this.list.add(created);
    this.navigation.open(created.conversation_id);
  }

  /** Pin, archive or label a conversation. @param {{pinned?: boolean, archived?: boolean, labels?: string[]}} marks @param {string} id */
  mark(id, marks) {
    return this.toasts.attempt(async () => {
      await this.api.call('conversation.rename', { conversation_id: id }, marks);
      await this.list.read();
    });
  }

  /** Start a run that compacts a conversation, and show the conversation with its result. @param {string} id */
  compact(id) {
    return this.toasts.attempt(async () => {
      await this.api.call('conversation.compact', { conversation_id: id });
      this.navigation.open(id);
    });
  }

  /** Import a file of conversations; show the only one, or the list of all. @param {File} file */
  importFile(file) {
    return this.toasts.attempt(async () => {
      const { imported } = await import('../importing.mjs');
      const items = await imported(this.api, file);
      const [{ conversation_id: id, left_out: leftOut }] = items;
      if (id) this.navigation.open(id);
      if (items.length > 1 || !id || Object.keys(leftOut).length) this.imported.value = items;
      else this.toasts.show(t('import.done'), 'info');
      this.list.refresh();
    });
  }

  rename(/** @type {string} */ id, /** @type {string} */ title) {
    return this.toasts.attempt(async () => {
      await this.api.renameConversation(id, title);
      this.renamed(id, title);
    });
  }

  remove(/** @type {string} */ id) {
    return this.toasts.attempt(async () => {
      await this.api.deleteConversation(id);
      this.removed(id);
    });
  }

  renamed(/** @type {string} */ id, /** @type {string} */ title) {
    this.list.setTitle(id, title);
    this.opened.setTitle(id, title);
  }

  removed(/** @type {string} */ id) {
    this.opened.drop(id);
    this.list.drop(id);
    if (this.navigation.currentId.value === id) this.navigation.open(null);
  }

  /**
   * Let a model write the title of a conversation whose title is its first message, once for each visit.
   *
   * @param {string} id
   */
  requestTitle(id) {
    if (this.#titled.has(id) || (this.list.find(id)?.title_by ?? 'message') !== 'message') return;
    this.#titled.add(id);
    // The new title arrives as an event of the log. If this fails, the first message remains the title.
    this.api.call('conversation.title', { conversation_id: id }).catch(() => {});
  }
}
