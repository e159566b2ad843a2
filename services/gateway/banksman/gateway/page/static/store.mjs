/** The state of the page in signals, and the actions of the user. */

import { batch, computed, signal } from '@preact/signals';

import { attached, writtenText } from './attachments.mjs';
import { before, endOf as endOfPath, isNewest, pathOf } from './branches.mjs';
import { emptyConversation, fold, foldAccepted, foldReplayDone, foldSubscribed, isBusy, openRun, placement } from './events.mjs';
import { Connection, RequestError, newId } from './client/connection.mjs';
import { Inbox } from './inbox.mjs';
import { addressOf, routeOf } from './router.mjs';
import { explain } from './strings.mjs';
import { contentText } from './text.mjs';
import { VIEWS } from './views.mjs';

const VERSION = '1';
const MAX_SUBSCRIPTIONS = 12;
const LIST_REFRESH_DELAY_MS = 400;
const LIST_POLL_MS = 20_000;
const TOAST_MS = 6000;
const TITLE_CHARACTERS = 60;
const MAX_PINNED = 50;
const MIN_SEARCH_CHARACTERS = 2;

/** `full` adds live output; both levels fold the same runs, so switching loses nothing. */
const detailOf = (details) => (details ? 'full' : 'steps');

/** Run at the next animation frame. A hidden page gets none, so run after 50 ms instead. */
const soon = (action) => (document.hidden ? setTimeout(action, 50) : requestAnimationFrame(action));

export class Store {
  /** @param {{api: import('./client/api.mjs').Api, session: Storage, preferences: Storage}} options */
  constructor({ api, session, preferences }) {
    Object.assign(this, { api, session, preferences });
    this.connection = signal({ phase: 'connecting' });
    this.welcome = signal(null);
    this.list = signal({ items: [], next: null, loading: true, error: null, query: '', archived: false, hits: [] });
    this.pinned = signal([]);
    this.currentId = signal(null);
    this.route = signal(routeOf('', VIEWS));
    this.details = signal(preferences.getItem('banksman.details') === 'on');
    this.outbox = signal([]);
    this.toasts = signal([]);
    this.panel = signal(null);
    this.sidebar = signal(false);
    this.workflowsOpen = signal(false);
    this.draft = signal('');
    /** By conversation, the chosen versions: see `pathOf`. */
    this.chosen = signal({});
    /** The message that the next one follows, where a user chose an earlier one. */
    this.continuing = signal(null);
    this.filesVersion = signal(0);
    /** The assistant of the next new conversation; null for the default one. */
    this.assistant = signal(null);
    /** The model of the next messages; null for that of the assistant. */
    this.model = signal(null);
    /** @type {Map<string, {state: import('@preact/signals').Signal, frames: object[], scheduled: boolean, reading: boolean, resetting: boolean}>} */
    this.views = new Map();
    this.viewCount = signal(0);
    this.current = computed(() => {
      this.viewCount.value;
      return this.views.get(this.currentId.value)?.state.value ?? null;
    });
    this.path = computed(() => (this.current.value ? pathOf(this.current.value, this.chosen.value[this.currentId.value]) : []));
    this.inbox = new Inbox({
      api,
      request: (frame) => this.socket.request(frame, { resend: frame.type === 'approval.reply' }),
      preferences,
      show: () => (location.hash = addressOf('approvals')),
    });
    this.socket = new Connection({
      open: (protocol) => new WebSocket(api.socketUrl(), protocol),
      hello: () => this.#hello(),
      onWelcome: (frame) => this.#welcomed(frame),
      onFrame: (frame) => this.#received(frame),
      onState: (state) => (this.connection.value = { ...state, since: Date.now() }),
    });
  }

  /** Connect and open the conversation that the URL names. */
  start() {
    addEventListener('hashchange', () => this.#openFromUrl());
    addEventListener('online', () => this.reconnect());
    document.addEventListener('visibilitychange', () => {
      if (!document.hidden && this.connection.value.phase === 'offline') this.reconnect();
      if (!document.hidden) this.refreshList();
    });
    setInterval(() => !document.hidden && this.connection.value.phase === 'online' && this.refreshList(), LIST_POLL_MS);
    this.socket.connect();
    this.#openFromUrl();
  }

  reconnect() {
    if (this.connection.value.phase !== 'online') this.socket.connect();
  }

  get token() {
    return this.session.getItem('banksman.token');
  }

  login(token) {
    this.session.setItem('banksman.token', token);
    this.socket.connect();
  }

  logout() {
    this.session.removeItem('banksman.token');
    this.socket.close();
    this.unauthorized();
  }

  unauthorized() {
    if (this.connection.value.phase !== 'unauthorized') this.connection.value = { phase: 'unauthorized', since: Date.now() };
  }

  // ---- conversations

  /** Begin a conversation with an assistant. */
  begin(assistant) {
    this.assistant.value = assistant;
    this.open(null);
  }

  open(id) {
    location.hash = id ? `#/c/${id}` : '#/';
  }

  setDetails(on) {
    this.details.value = on;
    this.preferences.setItem('banksman.details', on ? 'on' : 'off');
    this.#subscribeAgain();
  }

  /** Receive the output of running commands, also without details, until the returned function is called. */
  follows(on) {
    this.outputShown = on;
    this.#subscribeAgain();
    return () => on && this.follows(false);
  }

  #subscribeAgain() {
    for (const [id, view] of this.views) this.#subscribe(id, view.state.value.lastSeq);
  }

  search(query) {
    this.list.value = { ...this.list.value, query };
    this.refreshList();
  }

  refreshList() {
    clearTimeout(this.listTimer);
    this.listTimer = setTimeout(() => this.#readList(null), LIST_REFRESH_DELAY_MS);
  }

  /** List the archived conversations, or the others. */
  showArchived(archived) {
    this.list.value = { ...this.list.value, archived, items: [], next: null, loading: true };
    this.#readList(null);
  }

  /** Pin or archive a conversation. @param {{pinned?: boolean, archived?: boolean}} marks */
  async mark(id, marks) {
    await this.#attempt(async () => {
      await this.api.markConversation(id, marks);
      await Promise.all([this.#readPinned(), this.#readList(null)]);
    });
  }

  moreConversations() {
    return this.#readList(this.list.value.next);
  }

  async rename(id, title) {
    await this.#attempt(async () => {
      await this.api.renameConversation(id, title);
      this.#updateItem(id, { title });
    });
  }

  async remove(id) {
    await this.#attempt(async () => {
      await this.api.deleteConversation(id);
      this.#forget(id);
    });
  }

  // ---- runs

  /**
   * Send a message, in a new conversation if none is open. It is shown at once, and stays with its error
   * if it could not be sent.
   */
  async send(content, { mode, files = [], model = this.model.value, branch = mode === 'steer' ? null : this.#branch() } = {}) {
    const entry = { key: newId('m'), requestId: newId('s'), conversationId: this.currentId.value, content, mode, branch, files, model, error: null };
    batch(() => {
      this.outbox.value = [...this.outbox.value, entry];
      this.continuing.value = null;
      // The new message is the end of the newest path, which is shown.
      if (branch) this.showNewest(entry.conversationId);
    });
    await this.#deliver(entry);
  }

  /** Send another version of the message of a run, which is shown in its place. */
  sendVersion(runId, content) {
    return this.send(content, { branch: { after: before(this.path.value, runId) } });
  }

  /** Let the next message follow the end of a run. */
  continueAfter(runId) {
    const path = this.path.value;
    this.continuing.value = { conversationId: this.currentId.value, after: endOfPath(path.slice(0, path.findIndex(({ run }) => run.id === runId) + 1)) };
    document.getElementById('composer')?.focus();
  }

  /** Show the path to the newest run of a conversation. */
  showNewest(conversationId) {
    this.chosen.value = { ...this.chosen.value, [conversationId]: {} };
  }

  /** Show one of the runs that follow another. */
  showVersion(parent, runId) {
    const id = this.currentId.value;
    this.chosen.value = { ...this.chosen.value, [id]: { ...this.chosen.value[id], [parent]: runId } };
  }

  /** Take a message that waits back into the message box. */
  async editQueued(run) {
    await this.cancel(run.id);
    this.draft.value = [writtenText(run.prompt.content), this.draft.value].filter(Boolean).join('\n\n');
    document.getElementById('composer')?.focus();
  }

  /** Send a failed message again under the same id, so that a message that did arrive is not duplicated. */
  async resend(key) {
    const entry = this.outbox.value.find((item) => item.key === key);
    if (!entry) return;
    this.#changeOutbox(key, { error: null });
    await this.#deliver(entry);
  }

  discard(key) {
    this.outbox.value = this.outbox.value.filter((item) => item.key !== key);
  }

  async cancel(runId) {
    await this.#attempt(() => this.socket.request({ type: 'run.cancel', run_id: runId }));
  }

  /** @throws {RequestError} which the card shows */
  decide(approvalId, reply) {
    return this.inbox.decide(approvalId, reply);
  }

  /** @throws {RequestError} which the form shows */
  replyToInput(requestId, value) {
    return this.socket.request({ type: 'input.reply', request_id: requestId, value });
  }

  /** @throws {RequestError} which the form shows */
  async startWorkflow(workflow, parameters) {
    const conversationId = this.currentId.value;
    const frame = { type: 'workflow.start', workflow, parameters };
    const ack = await this.socket.request(conversationId ? { ...frame, conversation_id: conversationId } : frame);
    this.refreshList();
    if (!conversationId) this.open(ack.conversation_id ?? conversationOf(ack.run_id));
    return ack;
  }

  // ---- messages to the user

  toast(text, tone = 'error') {
    const key = newId('t');
    this.toasts.value = [...this.toasts.value, { key, text, tone }];
    setTimeout(() => this.dismiss(key), TOAST_MS);
  }

  dismiss(key) {
    this.toasts.value = this.toasts.value.filter((toast) => toast.key !== key);
  }

  /** Subscribe to a conversation and return its folded state as a signal. */
  follow(id) {
    let view = this.views.get(id);
    if (view) {
      this.views.delete(id);
      this.views.set(id, view);
      return view.state;
    }
    view = { state: signal(emptyConversation(id)), frames: [], scheduled: false, reading: false, resetting: false };
    this.views.set(id, view);
    this.viewCount.value += 1;
    this.#subscribe(id, 0);
    this.#trim();
    return view.state;
  }

  // ---- internal

  #hello() {
    const token = this.token;
    return { client: { name: 'banksman-web', version: VERSION }, ...(token ? { token } : {}) };
  }

  #welcomed(frame) {
    this.welcome.value = frame;
    this.inbox.start();
    this.#readList(null);
    this.#readPinned();
    for (const [id, view] of this.views) this.#subscribe(id, view.state.value.lastSeq);
  }

  async #subscribe(id, afterSeq) {
    const view = this.views.get(id);
    if (!view || !this.socket.ready) return;
    view.reading = true;
    try {
      const detail = detailOf(this.details.value || this.outputShown);
      await this.socket.request({ type: 'subscribe', conversation_id: id, after_seq: afterSeq, detail }, { resend: false });
    } catch (error) {
      if (error.code !== 'offline') this.#unreadable(id, error);
    }
  }

  #unreadable(id, error) {
    const view = this.views.get(id);
    if (!view) return;
    view.reading = false;
    view.resetting = false;
    view.state.value = { ...view.state.value, replayed: true, error: explain(error) };
  }

  #received(frame) {
    const view = frame.conversation_id ? this.views.get(frame.conversation_id) : null;
    if (view) return this.#buffer(frame.conversation_id, view, frame);
    if (frame.type === 'approvals.changed') this.inbox.changed();
    if (frame.type === 'error' && !frame.reply_to) this.toast(explain(frame));
  }

  #buffer(id, view, frame) {
    view.frames.push(frame);
    if (view.scheduled) return;
    view.scheduled = true;
    soon(() => batch(() => this.#flush(id, view)));
  }

  #flush(id, view) {
    view.scheduled = false;
    const frames = view.frames.splice(0);
    for (const frame of frames) this.#apply(id, view, frame);
  }

  #apply(id, view, frame) {
    const state = view.state.value;
    switch (frame.type) {
      case 'subscribed':
        return this.#subscribed(id, view, frame);
      case 'replay.done':
        if (view.resetting) return;
        view.state.value = foldReplayDone(state);
        return;
      case 'resync_required':
        view.reading = false;
        return this.#reload(id, view);
      default:
        if (frame.data && !view.resetting) this.#applyEvent(id, view, frame);
    }
  }

  #applyEvent(id, view, frame) {
    switch (placement(view.state.value, frame)) {
      case 'epoch':
        return this.#reload(id, view);
      case 'gap':
        if (!view.reading) this.#subscribe(id, view.state.value.lastSeq);
        return;
      default:
        view.state.value = fold(view.state.value, frame);
        this.#react(id, frame);
    }
  }

  #subscribed(id, view, frame) {
    const { logEpoch, lastSeq } = view.state.value;
    view.reading = false;
    view.resetting = false;
    const restored = logEpoch && frame.log_epoch && frame.log_epoch !== logEpoch;
    if (restored || frame.head_seq < lastSeq) return this.#reload(id, view);
    view.state.value = foldSubscribed(view.state.value, frame);
    if (view.state.value.title === null) this.#readTitle(id, view);
  }

  async #readTitle(id, view) {
    const listed = this.list.value.items.find((item) => item.conversation_id === id);
    try {
      const { title } = listed ?? (await this.api.conversation(id));
      if (view.state.value.title === null) view.state.value = { ...view.state.value, title: title ?? '' };
    } catch {
      // Without a title the conversation stays `Untitled`; the subscription reports any error.
    }
  }

  #reload(id, view) {
    if (view.reading) return;
    view.state.value = { ...emptyConversation(id), title: view.state.value.title };
    view.frames = [];
    view.resetting = true;
    this.#subscribe(id, 0);
  }

  /** Apply the effects of an event outside its conversation. */
  #react(id, frame) {
    switch (frame.type) {
      case 'conversation.updated':
        if (frame.data.status === 'deleted') this.#forget(id);
        else if (frame.data.title) this.#updateItem(id, { title: frame.data.title });
        return;
      case 'workspace.changed':
        this.filesVersion.value += 1;
        return;
      case 'run.started':
      case 'approval.requested':
      case 'approval.resolved':
      case 'run.finished':
        if (this.views.get(id).state.value.replayed) this.refreshList();
    }
  }

  #trim() {
    for (const [id, view] of this.views) {
      if (this.views.size <= MAX_SUBSCRIPTIONS) return;
      if (id === this.currentId.value || isBusy(view.state.value)) continue;
      this.views.delete(id);
      if (this.socket.ready) this.socket.request({ type: 'unsubscribe', conversation_id: id }, { resend: false }).catch(() => {});
    }
  }

  #forget(id) {
    this.views.delete(id);
    this.viewCount.value += 1;
    this.list.value = { ...this.list.value, items: this.list.value.items.filter((item) => item.conversation_id !== id) };
    this.pinned.value = this.pinned.value.filter((item) => item.conversation_id !== id);
    if (this.currentId.value === id) this.open(null);
  }

  #updateItem(id, change) {
    const items = this.list.value.items.map((item) => (item.conversation_id === id ? { ...item, ...change } : item));
    this.list.value = { ...this.list.value, items };
    this.pinned.value = this.pinned.value.map((item) => (item.conversation_id === id ? { ...item, ...change } : item));
    const view = this.views.get(id);
    if (view && change.title) view.state.value = { ...view.state.value, title: change.title };
  }

  #openFromUrl() {
    const route = routeOf(location.hash, VIEWS);
    batch(() => {
      this.route.value = route;
      this.currentId.value = route.conversationId;
      this.sidebar.value = false;
      if (route.conversationId) this.follow(route.conversationId);
    });
  }

  async #readList(cursor) {
    const { query, archived } = this.list.value;
    if (!cursor) this.#readHits(query);
    try {
      const page = await this.api.conversations({ query, cursor, archived });
      if (query !== this.list.value.query || archived !== this.list.value.archived) return;
      const items = cursor ? [...this.list.value.items, ...page.items] : page.items;
      this.list.value = { ...this.list.value, items, next: page.next ?? null, loading: false, error: null };
    } catch (error) {
      this.list.value = { ...this.list.value, loading: false, error: explain(error) };
    }
  }

  async #readPinned() {
    const { items } = await this.api.conversations({ pinned: true, limit: MAX_PINNED }).catch(() => ({ items: this.pinned.value }));
    this.pinned.value = items.filter((item) => item.pinned);
  }

  /** Read the messages that contain the query, once for each query. */
  async #readHits(query) {
    if (query === this.searched) return;
    this.searched = query;
    const found = query.length < MIN_SEARCH_CHARACTERS ? { items: [] } : await this.api.search(query).catch(() => ({ items: [] }));
    if (query === this.list.value.query) this.list.value = { ...this.list.value, hits: found.items };
  }

  async #deliver(entry) {
    try {
      const id = entry.conversationId ?? (await this.#createFor(entry));
      await this.#store(entry, id);
      const { content, mode, branch, model, requestId } = entry;
      const steer = mode === 'steer' && openRun(this.views.get(id)?.state.value ?? emptyConversation(id)) !== null;
      const frame = { type: 'chat.send', conversation_id: id, content, ...(mode ? { mode } : {}), ...(branch ? { branch } : {}), ...(model ? { overrides: { model } } : {}) };
      const ack = await this.socket.request(frame, { id: requestId });
      const view = this.views.get(id);
      batch(() => {
        const ts = new Date().toISOString();
        if (view) view.state.value = foldAccepted(view.state.value, { ...ack, content, ts, steer, branch });
        this.discard(entry.key);
      });
      this.refreshList();
    } catch (error) {
      this.#changeOutbox(entry.key, { error: explain(error) });
    }
  }

  /** Store the files of a message once: a message that is sent again already names them. */
  async #store(entry, conversationId) {
    if (!entry.files.length) return;
    entry.content = await attached(this.api, { conversationId, text: entry.content, files: entry.files });
    entry.files = [];
    this.#changeOutbox(entry.key, { content: entry.content, files: [] });
  }

  /** Where the next message continues the conversation; null for after the newest message. */
  #branch() {
    const conversation = this.current.value;
    const wanted = this.continuing.value;
    if (!conversation) return null;
    if (wanted?.conversationId === conversation.id) return { after: wanted.after };
    return isNewest(conversation, this.path.value) ? null : { after: endOfPath(this.path.value) };
  }

  async #createFor(entry) {
    const title = contentText(entry.content).trim().split('\n')[0].slice(0, TITLE_CHARACTERS);
    const assistant = this.assistant.value;
    const ack = await this.socket.request({ type: 'conversation.create', ...(title ? { title } : {}), ...(assistant ? { assistant } : {}) }, { id: `${entry.requestId}c` });
    this.assistant.value = null;
    const id = ack.conversation_id;
    this.#changeOutbox(entry.key, { conversationId: id });
    entry.conversationId = id;
    const state = this.follow(id);
    if (title) state.value = { ...state.value, title };
    if (this.currentId.value === null) this.open(id);
    return id;
  }

  #changeOutbox(key, change) {
    this.outbox.value = this.outbox.value.map((item) => (item.key === key ? { ...item, ...change } : item));
  }

  async #attempt(action) {
    try {
      await action();
    } catch (error) {
      if (!(error instanceof RequestError) && error.name !== 'ApiError') throw error;
      this.toast(explain(error));
    }
  }
}

/** The id of a run begins with the id of its conversation. */
function conversationOf(runId) {
  return runId.slice(0, runId.lastIndexOf('-'));
}
