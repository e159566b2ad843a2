/** The state of the page: its connection, its route and its settings, and the stores of its features. */

import { batch, signal } from '@preact/signals';

import { stored } from './attachments.mjs';
import { Connection, newId } from './client/connection.mjs';
import { Subscriptions, conversationOf } from './client/following.mjs';
import { emptyConversation, openRun } from './events.mjs';
import { VIEWS, addressOf, routeOf } from './router.mjs';
import { Inbox } from './stores/inbox.mjs';
import { Drafts } from './stores/drafts.mjs';
import { ConversationList } from './stores/list.mjs';
import { OpenConversations } from './stores/opened.mjs';
import { Outbox } from './stores/outbox.mjs';
import { explain, t } from './strings.mjs';

const VERSION = '1';
const LIST_POLL_MS = 20_000;
const TOAST_MS = 6000;

export const TOKEN = 'banksman.token';
/** Whether the token can be renewed. */
export const RENEWABLE = 'banksman.renewable';

export class Store {
  #titled = new Set();

  /** @param {{api: import('./client/api.mjs').Api, preferences: Storage}} options */
  constructor({ api, preferences }) {
    this.api = api;
    this.preferences = preferences;
    /** Why a sign-in failed before the page was shown. @type {string | null | undefined} */
    this.signInError = null;
    this.connection = signal(/** @type {ConnectionState} */ ({ phase: 'connecting' }));
    this.welcome = signal(/** @type {Welcome | null} */ (null));
    this.currentId = signal(/** @type {string | null} */ (null));
    this.route = signal(routeOf('', VIEWS));
    this.details = signal(preferences.getItem('banksman.details') === 'on');
    this.toasts = signal(/** @type {Toast[]} */ ([]));
    /** What the last import did; null while it is not shown. */
    this.imported = signal(/** @type {import('./importing.mjs').Imported[] | null} */ (null));
    this.panel = signal(/** @type {'files' | null} */ (null));
    this.sidebar = signal(false);
    /** What a key opened over the page: the command palette or the keyboard map. */
    this.shortcut = signal(/** @type {'palette' | 'map' | null} */ (null));
    /** Whether the workflows are shown; an object for the form of one workflow with its initial values. */
    this.workflowsOpen = signal(/** @type {boolean | FilledForm} */ (false));
    /** Counts the changes of workspaces, whose files are then read again. */
    this.filesVersion = signal(0);
    this.socket = new Connection({
      open: (protocol) => new WebSocket(api.socketUrl(), protocol),
      hello: () => this.#hello(),
      onWelcome: (frame) => this.#welcomed(frame),
      onFrame: (frame) => this.#received(frame),
      onState: (state) => {
        if (state.phase === 'unauthorized') this.unauthorized();
        else this.connection.value = { ...state, since: Date.now() };
      },
      // A visible page notices a frozen gateway within 5 s, for a ping and its reply every 2 s.
      busy: () =>
        !document.hidden ||
        openRun(this.opened.current.peek() ?? emptyConversation(''))?.status === 'running',
    });
    this.subscriptions = new Subscriptions(this.socket);
    this.list = new ConversationList({ api });
    /** @type {import('./stores/renewal.mjs').Renewal | null} */
    this.renewal = null;
    this.inbox = new Inbox({
      api,
      request: (frame) => this.socket.request(frame, { resend: frame.type === 'approval.reply' }),
      preferences,
      show: () => (location.hash = addressOf('approvals')),
      onDecided: () => this.list.refresh(),
    });
    this.opened = new OpenConversations({
      api,
      subscriptions: this.subscriptions,
      currentId: this.currentId,
      details: this.details,
      listed: (id) => this.list.find(id),
      onEvent: (id, frame) => this.#react(id, frame),
    });
    this.drafts = new Drafts({ preferences, currentId: this.currentId });
    this.outbox = new Outbox({
      api,
      drafts: this.drafts,
      socket: this.socket,
      opened: this.opened,
      open: (id) => this.open(id),
      onSent: () => this.list.refresh(),
      cancel: (runId) => this.cancel(runId),
    });
  }

  /** Connect and open the conversation that the URL names. */
  async start() {
    addEventListener('hashchange', () => this.#openFromUrl());
    addEventListener('online', () => this.reconnect());
    addEventListener(
      'storage',
      ({ key, oldValue, newValue }) => key === TOKEN && this.#signedElsewhere(oldValue, newValue),
    );
    document.addEventListener('visibilitychange', () => this.#shown());
    addEventListener('pageshow', () => this.#shown());
    setInterval(
      () => !document.hidden && this.connection.value.phase === 'online' && this.list.refresh(),
      LIST_POLL_MS,
    );
    this.#openFromUrl();
    await this.#staySignedIn();
    this.socket.connect();
  }

  /** Renew the token of an account in time; also after the page was hidden, when timers are late. */
  async #staySignedIn() {
    if (this.preferences.getItem(RENEWABLE) && !this.renewal) {
      const { Renewal } = await import('./stores/renewal.mjs');
      this.renewal = new Renewal({
        api: this.api,
        preferences: this.preferences,
        onToken: (token) => this.#adopt(token),
        onEnd: () => this.#ended(),
      });
    }
    this.renewal?.plan();
  }

  /** The system may have cut the connection of a hidden tab without a word. */
  #shown() {
    if (document.hidden) return;
    if (this.connection.value.phase === 'offline') this.reconnect();
    this.socket.probe();
    this.#staySignedIn();
    this.list.refresh();
  }

  reconnect() {
    if (this.connection.value.phase !== 'online') this.socket.connect();
  }

  /** Another tab signed in or out, or renewed the token: this one follows. @param {string | null} before @param {string | null} token */
  #signedElsewhere(before, token) {
    if (!token) return this.#ended();
    this.#staySignedIn();
    if (this.renewal?.isSameAccount(before, token)) this.#adopt(token);
    else this.socket.connect();
  }

  /** Continue with another token of the account. @param {string} token */
  #adopt(token) {
    if (this.connection.value.phase !== 'online') return this.socket.connect();
    const refresh = this.socket.request({ type: 'auth.refresh', token }, { resend: false });
    // After a lost connection the page says hello with the new token.
    return refresh.catch(() => {});
  }

  #ended() {
    this.welcome.value = null;
    this.socket.close();
    this.#showLogin();
  }

  get token() {
    return this.preferences.getItem(TOKEN);
  }

  login(/** @type {string} */ token) {
    this.preferences.removeItem(RENEWABLE);
    this.preferences.setItem(TOKEN, token);
    this.socket.connect();
  }

  /** Show the sign-in form to a user who works without a key. */
  signIn() {
    this.socket.close();
    this.connection.value = { phase: 'unauthorized', optional: true, since: Date.now() };
  }

  async logout() {
    await this.inbox.endPush().catch(() => {});
    await this.drafts.clear();
    await this.renewal?.end();
    this.preferences.removeItem(TOKEN);
    // Read by `signin.mjs`, also in other tabs.
    this.preferences.setItem('banksman.signedOut', 'yes');
    this.#ended();
  }

  /** The gateway refused the token, which may have expired while the page was hidden. */
  unauthorized() {
    if (!this.renewal?.afterRefusal()) this.#showLogin();
  }

  #showLogin() {
    if (this.connection.value.phase !== 'unauthorized')
      this.connection.value = { phase: 'unauthorized', since: Date.now() };
  }

  // ---- conversations

  /** Begin a conversation with an assistant. @param {string} assistant */
  begin(assistant) {
    this.outbox.assistant.value = assistant;
    this.open(null);
  }

  /** Begin a conversation whose workspace starts from a repository. @param {{repository: string}} source */
  async beginFrom(source) {
    const assistant = this.outbox.assistant.value;
    const created = await this.api.call(
      'conversation.create',
      {},
      { source, ...(assistant ? { assistant } : {}) },
    );
    this.outbox.assistant.value = null;
    this.list.add(created);
    this.open(created.conversation_id);
  }

  /** Begin a conversation whose workspace starts from an archive of this device. @param {File} file */
  async beginFromArchive(file) {
    const assistant = this.outbox.assistant.value;
    const created = await this.api.call('conversation.create', {}, assistant ? { assistant } : {});
    const id = created.conversation_id;
    try {
      await this.api.upload(id, file.name, file);
      await this.api.call('file.unpack', { conversation_id: id }, { path: file.name });
    } catch (failure) {
      await this.api.deleteConversation(id);
      throw failure;
    }
    this.outbox.assistant.value = null;
    this.list.add(created);
    this.open(id);
  }

  open(/** @type {string | null} */ id) {
    location.hash = id ? `#/c/${id}` : '#/';
  }

  setDetails(/** @type {boolean} */ on) {
    this.details.value = on;
    this.preferences.setItem('banksman.details', on ? 'on' : 'off');
    this.opened.subscribeAgain();
  }

  /** Show the page in another language, from its start, because shown texts do not change. @param {string} language */
  setLanguage(language) {
    this.preferences.setItem('banksman.language', language);
    location.reload();
  }

  /** Pin, archive or label a conversation. @param {{pinned?: boolean, archived?: boolean, labels?: string[]}} marks @param {string} id */
  async mark(id, marks) {
    await this.attempt(async () => {
      await this.api.call('conversation.rename', { conversation_id: id }, marks);
      await this.list.read();
    });
  }

  /** Start a run that compacts a conversation, and show the conversation with its result. @param {string} id */
  async compact(id) {
    await this.attempt(async () => {
      await this.api.call('conversation.compact', { conversation_id: id });
      this.open(id);
    });
  }

  /** Import a file of conversations; show the only one, or the list of all. @param {File} file */
  async importFile(file) {
    await this.attempt(async () => {
      const { imported } = await import('./importing.mjs');
      const items = await imported(this.api, file);
      const [{ conversation_id: id, left_out: leftOut }] = items;
      if (id) this.open(id);
      if (items.length > 1 || !id || Object.keys(leftOut).length) this.imported.value = items;
      else this.toast(t('import.done'), 'info');
      this.list.refresh();
    });
  }

  async rename(/** @type {string} */ id, /** @type {string} */ title) {
    await this.attempt(async () => {
      await this.api.renameConversation(id, title);
      this.#renamed(id, title);
    });
  }

  async remove(/** @type {string} */ id) {
    await this.attempt(async () => {
      await this.api.deleteConversation(id);
      this.#removed(id);
    });
  }

  // ---- runs

  async cancel(/** @type {string} */ runId) {
    await this.attempt(() => this.socket.request({ type: 'run.cancel', run_id: runId }));
  }

  /**
   * @throws {RequestError} which the form shows
   * @param {string} requestId
   * @param {{value?: unknown, decline?: boolean}} reply
   */
  replyToInput(requestId, reply) {
    return this.socket.request({ type: 'input.reply', request_id: requestId, ...reply });
  }

  /** @throws {RequestError} which the form shows @param {string} workflow its name @param {Json} parameters */
  async startWorkflow(workflow, parameters) {
    const conversationId = this.currentId.value;
    const frame = { type: 'workflow.start', workflow, parameters };
    const ack = await this.socket.request(
      conversationId ? { ...frame, conversation_id: conversationId } : frame,
    );
    this.list.refresh();
    if (!conversationId) this.open(ack.conversation_id ?? conversationOf(ack.run_id ?? ''));
    return ack;
  }

  /**
   * Store a file in the workspace of the open conversation, or of a new one; return its path.
   *
   * @param {File} file
   * @throws {RequestError}
   */
  async storeFile(file) {
    const id =
      this.currentId.value ??
      /** @type {string} */ ((await this.socket.request({ type: 'conversation.create' })).conversation_id);
    const path = await stored(this.api, id, file);
    if (this.currentId.value === null) this.open(id);
    return path;
  }

  /**
   * Show the filled form of the workflow that a command names. A text that names no workflow is sent as a message.
   *
   * @param {string} text
   */
  async startCommand(text) {
    try {
      const { workflow, parameters, problems } = await this.api.parseWorkflow(text);
      this.workflowsOpen.value = { name: workflow.name, parameters, problems };
      this.outbox.draft.value = '';
    } catch (error) {
      if (/** @type {Failure} */ (error).code !== 'not_found') return this.toast(explain(error));
      this.outbox.draft.value = '';
      await this.outbox.send(text);
    }
  }

  // ---- messages to the user

  toast(/** @type {string} */ text, tone = 'error') {
    const key = newId('t');
    this.toasts.value = [{ key, text, tone }, ...this.toasts.value];
    setTimeout(() => this.dismiss(key), TOAST_MS);
  }

  dismiss(/** @type {string} */ key) {
    this.toasts.value = this.toasts.value.filter((toast) => toast.key !== key);
  }

  /** Do something, and show why it failed. @param {() => unknown} action */
  async attempt(action) {
    try {
      await action();
    } catch (error) {
      this.toast(explain(error));
    }
  }

  // ---- what arrives

  #hello() {
    const token = this.token;
    return { client: { name: 'banksman-web', version: VERSION }, ...(token ? { token } : {}) };
  }

  #welcomed(/** @type {Welcome} */ frame) {
    this.welcome.value = frame;
    this.drafts.show(`${frame.tenant}/${frame.user}`);
    this.inbox.start();
    this.list.read();
    this.opened.subscribeAgain();
  }

  #received(/** @type {import('./client/types.d.ts').Frame} */ frame) {
    this.subscriptions.receive(frame);
    if (frame.type === 'approvals.changed') this.inbox.changed();
    if (frame.type === 'error' && !frame.reply_to) this.toast(explain(frame));
  }

  /** Apply the effects of an event outside its conversation. @param {string} id @param {EventFrame} frame */
  #react(id, frame) {
    switch (frame.type) {
      case 'conversation.updated':
        if (frame.data.status === 'deleted') this.#removed(id);
        else if (frame.data.title) this.#renamed(id, frame.data.title);
        return;
      case 'workspace.changed':
        this.filesVersion.value += 1;
        return;
      case 'run.started':
      case 'approval.requested':
      case 'approval.resolved':
      case 'run.finished':
        if (frame.type === 'run.finished' && frame.data.status === 'completed') this.#requestTitle(id);
        if (this.opened.stateOf(id)?.replayed) this.list.refresh();
    }
  }

  /**
   * Let a model write the title of a conversation whose title is its first message, once for each visit.
   *
   * @param {string} id
   */
  #requestTitle(id) {
    if (this.#titled.has(id) || (this.list.find(id)?.title_by ?? 'message') !== 'message') return;
    this.#titled.add(id);
    // The new title arrives as an event of the log. If this fails, the first message remains the title.
    this.api.generateTitle(id).catch(() => {});
  }

  #renamed(/** @type {string} */ id, /** @type {string} */ title) {
    this.list.setTitle(id, title);
    this.opened.setTitle(id, title);
  }

  #removed(/** @type {string} */ id) {
    this.opened.drop(id);
    this.list.drop(id);
    if (this.currentId.value === id) this.open(null);
  }

  #openFromUrl() {
    const route = routeOf(location.hash, VIEWS);
    batch(() => {
      this.route.value = route;
      this.currentId.value = route.conversationId;
      this.sidebar.value = false;
      if (route.conversationId) this.opened.follow(route.conversationId);
    });
  }
}
