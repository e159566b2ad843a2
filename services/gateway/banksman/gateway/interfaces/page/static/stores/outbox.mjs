/** The messages of the user: the draft, and messages that are being sent or could not be sent. */

import { batch, signal } from '@preact/signals';

import { attached, writtenText } from '../attachments.mjs';
import { before, endOf, isNewest } from '../branches.mjs';
import { newId } from '../client/connection.mjs';
import { emptyConversation, openRun } from '../events.mjs';
import { explain } from '../strings.mjs';
import { contentText } from '../text.mjs';

const TITLE_CHARACTERS = 60;

/**
 * @typedef {object} Entry
 * @property {string} key
 * @property {string} requestId the same for each attempt, so that a message that did arrive is not duplicated
 * @property {string | null} conversationId null until the conversation is created
 * @property {Content} content
 * @property {string} [mode] `steer` or `queue`, while a run is open
 * @property {{after: string | null} | null} branch the message that it follows; null for the newest one
 * @property {File[]} files to be stored with it
 * @property {string | null} model
 * @property {string | null} error why it could not be sent
 * @property {boolean} [isLost] whether it got no reply
 */

export class Outbox {
  /**
   * @param {object} options
   * @param {import('../client/api.mjs').Api} options.api
   * @param {import('../client/connection.mjs').Connection} options.socket
   * @param {import('./opened.mjs').OpenConversations} options.opened
   * @param {import('./drafts.mjs').Drafts} options.drafts
   * @param {(id: string) => void} options.open shows a conversation
   * @param {() => void} options.onSent
   * @param {(runId: string) => Promise<void>} options.cancel
   */
  constructor({ api, socket, opened, drafts, open, onSent, cancel }) {
    this.api = api;
    this.socket = socket;
    this.opened = opened;
    this.drafts = drafts;
    this.open = open;
    this.onSent = onSent;
    this.cancel = cancel;
    /** @type {import('@preact/signals').Signal<Entry[]>} */
    this.entries = signal([]);
    this.draft = drafts.text;
    this.files = drafts.files;
    /** The message that the next message follows, if the user chose an earlier one. */
    this.continuing = signal(
      /** @type {{conversationId: string | null, after: string | null} | null} */ (null),
    );
    /** The assistant of the next new conversation; null for the default one. */
    this.assistant = signal(/** @type {string | null} */ (null));
    /** The model of the next messages of the conversation; null for the model of the assistant. */
    this.model = drafts.model;
  }

  /**
   * Send a message, in a new conversation if none is open. It is shown at once, and remains with its error if
   * it could not be sent.
   *
   * @param {Content} content
   * @param {{mode?: string, files?: File[], model?: string | null, branch?: Branch | null}} [options]
   */
  async send(
    content,
    { mode, files = [], model = this.model.value, branch = mode === 'steer' ? null : this.#branch() } = {},
  ) {
    const conversationId = this.opened.currentId.value;
    const entry = {
      key: newId('m'),
      requestId: newId('s'),
      conversationId,
      content,
      mode,
      branch,
      files,
      model,
      error: null,
    };
    batch(() => {
      this.entries.value = [...this.entries.value, entry];
      this.continuing.value = null;
      // The new message is the end of the newest path, which is shown.
      if (branch && conversationId) this.opened.showNewest(conversationId);
    });
    await this.#deliver(entry);
  }

  /**
   * Send another version of the message of a run, which is shown in its place.
   *
   * @param {string} runId
   * @param {Content} content
   */
  sendVersion(runId, content) {
    return this.send(content, { branch: { after: before(this.opened.path.value, runId) } });
  }

  /** Let the next message follow the end of a run. @param {string} runId */
  continueAfter(runId) {
    const path = this.opened.path.value;
    const at = path.findIndex(({ run }) => run.id === runId);
    this.continuing.value = {
      conversationId: this.opened.currentId.value,
      after: endOf(path.slice(0, at + 1)),
    };
    document.getElementById('composer')?.focus();
  }

  /** Move a waiting message back into the message box. @param {Run} run */
  async editQueued(run) {
    await this.cancel(run.id);
    this.drafts.returned(this.opened.currentId.value ?? '', writtenText(run.prompt?.content ?? ''));
    document.getElementById('composer')?.focus();
  }

  /** Make drafts of what was not sent, before the page is closed. */
  keep() {
    for (const { conversationId, content, files } of this.entries.value)
      this.drafts.returned(conversationId ?? '', writtenText(content), files);
    this.entries.value = [];
  }

  /** Send again, on a new connection, what got no reply on the earlier ones. */
  resendLost() {
    for (const { key, isLost } of this.entries.value) if (isLost) this.resend(key);
  }

  /**
   * Send a failed message again under the same id, so that a message that did arrive is not duplicated.
   *
   * @param {string} key
   */
  async resend(key) {
    const entry = this.entries.value.find((item) => item.key === key);
    if (!entry) return;
    this.#change(key, { error: null, isLost: false });
    await this.#deliver(entry);
  }

  discard(/** @type {string} */ key) {
    this.entries.value = this.entries.value.filter((item) => item.key !== key);
  }

  /** The message after which the next message continues the conversation; null for the newest message. */
  #branch() {
    const conversation = this.opened.current.value;
    const path = this.opened.path.value;
    const wanted = this.continuing.value;
    if (!conversation) return null;
    if (wanted?.conversationId === conversation.id) return { after: wanted.after };
    return isNewest(conversation, path) ? null : { after: endOf(path) };
  }

  async #deliver(/** @type {Entry} */ entry) {
    try {
      const id = entry.conversationId ?? (await this.#createFor(entry));
      await this.#store(entry, id);
      const { content, mode, branch, model, requestId } = entry;
      const attachments = await this.#named(id, content);
      const steer = mode === 'steer' && openRun(this.opened.stateOf(id) ?? emptyConversation(id)) !== null;
      const frame = {
        type: 'chat.send',
        conversation_id: id,
        content,
        ...(mode ? { mode } : {}),
        ...(branch ? { branch } : {}),
        ...(model ? { overrides: { model } } : {}),
        ...(attachments.length ? { attachments } : {}),
      };
      const ack = await this.socket.request(frame, { id: requestId });
      batch(() => {
        const run_id = ack.run_id ?? '';
        this.opened.accepted(id, { ...ack, run_id, content, ts: new Date().toISOString(), steer, branch });
        this.discard(entry.key);
      });
      this.onSent();
    } catch (error) {
      const { code, status } = /** @type {{code?: string, status?: number}} */ (error);
      const isLost = code === 'timeout' || code === 'offline' || status === 0;
      this.#change(entry.key, { error: explain(error), isLost });
    }
  }

  /**
   * Store the files of a message once: a message that is sent again already names them.
   *
   * @param {Entry} entry
   * @param {string} conversationId
   */
  async #store(entry, conversationId) {
    if (!entry.files.length) return;
    entry.content = await attached(this.api, {
      conversationId,
      text: contentText(entry.content),
      files: entry.files,
    });
    entry.files = [];
    this.#change(entry.key, { content: entry.content, files: [] });
  }

  /** The files of the workspace that a message names by `@path`. @param {string} id @param {Content} content */
  async #named(id, content) {
    if (typeof content !== 'string' || !content.includes('@')) return [];
    const { filesIn } = await import('../completion.mjs');
    const { items } = await this.api.files(id).catch(() => ({ items: [] }));
    return filesIn(
      content,
      items.map(({ path }) => path),
    );
  }

  async #createFor(/** @type {Entry} */ entry) {
    // The gateway derives the title of the list from the first message; a model may replace that one.
    const title = contentText(entry.content).trim().split('\n')[0].slice(0, TITLE_CHARACTERS);
    const assistant = this.assistant.value;
    const ack = await this.socket.request(
      { type: 'conversation.create', ...(assistant ? { assistant } : {}) },
      { id: `${entry.requestId}c` },
    );
    this.assistant.value = null;
    const id = /** @type {string} */ (ack.conversation_id);
    this.#change(entry.key, { conversationId: id });
    this.opened.follow(id);
    this.drafts.created(id);
    if (title) this.opened.setTitle(id, title);
    if (this.opened.currentId.value === null) this.open(id);
    return id;
  }

  #change(/** @type {string} */ key, /** @type {Partial<Entry>} */ change) {
    this.entries.value = this.entries.value.map((item) => (item.key === key ? { ...item, ...change } : item));
  }
}
