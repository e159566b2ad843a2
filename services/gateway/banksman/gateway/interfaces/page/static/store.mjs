/** The stores of the page's features, and how they affect each other. */

import { Subscriptions } from './client/following.mjs';
import { emptyConversation, openRun } from './events.mjs';
import { addressOf } from './router.mjs';
import { Conversations } from './stores/conversations.mjs';
import { Drafts } from './stores/drafts.mjs';
import { Inbox } from './stores/inbox.mjs';
import { ConversationList } from './stores/list.mjs';
import { Navigation } from './stores/navigation.mjs';
import { OpenConversations } from './stores/opened.mjs';
import { Outbox } from './stores/outbox.mjs';
import { Runs } from './stores/runs.mjs';
import { Session } from './stores/session.mjs';
import { Settings } from './stores/settings.mjs';
import { Toasts } from './stores/toasts.mjs';
import { Workspace } from './stores/workspace.mjs';
import { explain } from './strings.mjs';

const LIST_POLL_MS = 20_000;

export class Store {
  toasts = new Toasts();
  navigation = new Navigation();

  /** @param {{api: import('./client/api.mjs').Api, preferences: Storage}} options */
  constructor({ api, preferences }) {
    const { navigation, toasts } = this;
    const { currentId } = navigation;
    this.api = api;
    this.settings = new Settings({ preferences });
    this.session = new Session({
      api,
      preferences,
      // A visible page notices a frozen gateway within 5 s, for a ping and its reply every 2 s.
      isBusy: () => !document.hidden || this.#isRunning(),
      onWelcome: (frame) => this.#welcomed(frame),
      onFrame: (frame) => this.#received(frame),
      onSignOut: async () => {
        await this.inbox.endPush().catch(() => {});
        await this.drafts.clear();
      },
    });
    const { socket } = this.session;
    this.subscriptions = new Subscriptions(socket);
    this.list = new ConversationList({ api });
    this.runs = new Runs({ api, socket, navigation, toasts, onStarted: () => this.list.refresh() });
    this.workspace = new Workspace({ api, socket, navigation });
    this.inbox = new Inbox({
      api,
      request: (frame) => socket.request(frame, { resend: frame.type === 'approval.reply' }),
      preferences,
      show: () => (location.hash = addressOf('approvals')),
      onDecided: () => this.list.refresh(),
    });
    this.opened = new OpenConversations({
      api,
      subscriptions: this.subscriptions,
      currentId,
      details: this.settings.details,
      namesMessage: () => navigation.route.value.path.length > 0,
      listed: (id) => this.list.find(id),
      onEvent: (id, frame) => this.#react(id, frame),
    });
    this.drafts = new Drafts({ preferences, currentId });
    this.outbox = new Outbox({
      api,
      drafts: this.drafts,
      socket,
      opened: this.opened,
      open: (id) => navigation.open(id),
      onSent: () => this.list.refresh(),
      cancel: (runId) => this.runs.cancel(runId),
    });
    this.settings.details.subscribe(() => this.opened.subscribeAgain());
    const { list, opened, outbox } = this;
    this.conversations = new Conversations({ api, list, navigation, opened, outbox, toasts });
  }

  /** Connect and open the conversation that the URL names. */
  start() {
    document.addEventListener('visibilitychange', () => this.#shown());
    addEventListener('pageshow', () => this.#shown());
    addEventListener('pagehide', () => this.outbox.keep());
    setInterval(
      () => !document.hidden && this.session.connection.value.phase === 'online' && this.list.refresh(),
      LIST_POLL_MS,
    );
    this.navigation.follow((id) => this.opened.follow(id));
    return this.session.start();
  }

  /** @returns {boolean} whether the shown conversation has a running run */
  #isRunning() {
    return openRun(this.opened.current.peek() ?? emptyConversation(''))?.status === 'running';
  }

  #shown() {
    if (document.hidden) return;
    this.session.shown();
    this.list.read();
  }

  #welcomed(/** @type {Welcome} */ frame) {
    this.drafts.show(`${frame.tenant}/${frame.user}`);
    this.inbox.start();
    this.list.read();
    this.opened.subscribeAgain();
    this.outbox.resendLost();
  }

  #received(/** @type {import('./client/types.d.ts').Frame} */ frame) {
    this.subscriptions.receive(frame);
    if (frame.type === 'approvals.changed') this.inbox.changed();
    if (frame.type === 'error' && !frame.reply_to) this.toasts.show(explain(frame));
  }

  /** Apply the effects of an event outside its conversation. @param {string} id @param {EventFrame} frame */
  #react(id, frame) {
    switch (frame.type) {
      case 'conversation.updated':
        if (frame.data.status === 'deleted') this.conversations.removed(id);
        else if (frame.data.title) this.conversations.renamed(id, frame.data.title);
        return;
      case 'workspace.changed':
        return this.workspace.changed();
      case 'run.started':
      case 'approval.requested':
      case 'approval.resolved':
      case 'run.finished':
        if (frame.type === 'run.finished' && frame.data.status === 'completed')
          this.conversations.requestTitle(id);
        if (this.opened.stateOf(id)?.replayed) this.list.refresh();
    }
  }
}
