/** The open conversations: each is followed, and its events are folded into its state. */

import { batch, computed, signal } from '@preact/signals';

import { choicesFor, pathOf } from '../branches.mjs';
import { LogRestored } from '../client/following.mjs';
import {
  emptyConversation,
  fold,
  foldAccepted,
  foldReplayDone,
  foldSubscribed,
  foldWhole,
  isBusy,
} from '../events.mjs';
import { isCut } from '../run_events.mjs';
import { explain } from '../strings.mjs';
import { codePoints } from '../text.mjs';

const MAX_SUBSCRIPTIONS = 12;
/** With how many runs a conversation is shown before its earlier events are read; more than fit on a screen. */
const NEWEST_RUNS = 20;
const READ_AGAIN_MS = 2_000;
const PIECES = ['message.delta', 'reasoning.delta'];
/** @typedef {import('../client/following.mjs').Followed} Frame */

/** Join the neighbouring pieces of one text, so that a text is folded once for each frame of the screen. */
/** @param {Frame[]} frames @returns {Frame[]} */
function joined(frames) {
  /** @type {any[]} only the pieces have offsets */
  const list = [];
  /** @type {number | null} */
  let next = null;
  for (const frame of frames) {
    const last = list.at(-1);
    const data = 'data' in frame ? /** @type {any} */ (frame.data) : frame;
    if (!PIECES.includes(frame.type)) next = null;
    else if (
      next !== null &&
      last.type === frame.type &&
      last.data.message_id === data.message_id &&
      next === data.offset
    ) {
      list[list.length - 1] = { ...last, data: { ...last.data, text: last.data.text + data.text } };
      next += codePoints(data.text);
      continue;
    } else next = data.offset + codePoints(data.text);
    list.push(next === null ? frame : { ...frame, data });
  }
  return list;
}

/**
 * Run at the next animation frame. A hidden page gets none, so run after 50 ms instead.
 *
 * @param {() => unknown} action
 */
const soon = (action) => (document.hidden ? setTimeout(action, 50) : requestAnimationFrame(() => action()));

/** Whether a request may succeed when it is repeated; status 0 if no response arrived. @param {Failure} failure */
const isTransient = ({ status = 0 }) => status < 400 || status === 429 || status >= 500;

/** @typedef {(conversation: Conversation) => Conversation} Change */
/**
 * @typedef {object} View
 * @property {Signal<Conversation>} state the folded state of the conversation
 * @property {Frame[]} frames received, and not yet folded
 * @property {boolean} replaying whether stored events are arriving
 * @property {boolean} scheduled whether the frames are about to be folded
 * @property {Change[] | null} kept the changes since the newest runs were received, while the earlier events are read
 * @property {import('../client/following.mjs').Follower | null} follower receives the frames; ended after a failure
 */

export class OpenConversations {
  /** @type {Map<string, View>} least recently followed first */
  #views = new Map();
  #count = signal(0);
  /** How many components show the output of running commands. */
  #output = 0;

  /**
   * @param {object} options
   * @param {import('../client/api.mjs').Api} options.api
   * @param {import('../client/following.mjs').Subscriptions} options.subscriptions
   * @param {import('@preact/signals').Signal<string | null>} options.currentId the conversation that is shown
   * @param {import('@preact/signals').Signal<boolean>} options.details whether live output is received
   * @param {() => boolean} options.namesMessage whether the address names a message, which may be an old one
   * @param {(id: string) => {title?: string} | undefined} options.listed the entry of the list of conversations
   * @param {(id: string, frame: EventFrame) => void} options.onEvent is called after an event was folded
   */
  constructor({ api, subscriptions, currentId, details, namesMessage, listed, onEvent }) {
    this.api = api;
    this.subscriptions = subscriptions;
    this.currentId = currentId;
    this.details = details;
    this.namesMessage = namesMessage;
    this.listed = listed;
    this.onEvent = onEvent;
    /** The chosen versions by conversation; see `pathOf`. */
    this.chosen = signal(/** @type {Record<string, Record<string, string>>} */ ({}));
    this.current = computed(() => {
      this.#count.value;
      return this.stateOf(currentId.value) ?? null;
    });
    this.path = computed(() =>
      this.current.value ? pathOf(this.current.value, this.chosen.value[this.current.value.id]) : [],
    );
  }

  /** Open a conversation and return its folded state as a signal. @param {string} id */
  follow(id) {
    let view = this.#views.get(id);
    if (view) {
      this.#views.delete(id);
      this.#views.set(id, view);
      return view.state;
    }
    const state = signal(emptyConversation(id));
    view = { state, frames: [], replaying: false, scheduled: false, kept: null, follower: null };
    this.#views.set(id, view);
    this.#count.value += 1;
    this.#read(id, view);
    this.#trim();
    return view.state;
  }

  /** Receive the output of running commands, even without details, until the returned function is called. */
  followOutput() {
    const change = (/** @type {1 | -1} */ by) => {
      const before = this.#detail();
      this.#output += by;
      if (this.#detail() !== before) this.subscribeAgain();
    };
    change(1);
    return () => change(-1);
  }

  /** Subscribe to all open conversations, on a new connection or with another level of detail. */
  subscribeAgain() {
    for (const [id, view] of this.#views) {
      if (view.follower?.ended) this.#reload(id, view);
      else view.follower?.subscribe(this.#detail());
    }
  }

  /** The folded state of a conversation; undefined if it is not open. @param {string | null} id */
  stateOf(id) {
    return id === null ? undefined : this.#views.get(id)?.state.value;
  }

  /** Show the path to the newest run of a conversation. @param {string} conversationId */
  showNewest(conversationId) {
    this.chosen.value = { ...this.chosen.value, [conversationId]: {} };
  }

  /** Show the path that contains a run of the shown conversation. @param {string} runId */
  showRun(runId) {
    if (this.current.value) this.#choose(choicesFor(this.current.value, runId));
  }

  /** Show one of the runs that follow another. @param {string} runId @param {string} parent */
  showVersion(parent, runId) {
    this.#choose({ [parent]: runId });
  }

  #choose(/** @type {Record<string, string>} */ choices) {
    const id = this.currentId.value ?? '';
    this.chosen.value = { ...this.chosen.value, [id]: { ...this.chosen.value[id], ...choices } };
  }

  setTitle(/** @type {string} */ id, /** @type {string} */ title) {
    const view = this.#views.get(id);
    if (view) this.#change(view, (conversation) => ({ ...conversation, title }));
  }

  /** Show a message that was accepted, before its event arrives. @param {string} id @param {import('../events.mjs').Accepted} message */
  accepted(id, message) {
    const view = this.#views.get(id);
    if (view) this.#change(view, (conversation) => foldAccepted(conversation, message));
  }

  drop(/** @type {string} */ id) {
    this.#close(id);
    this.#count.value += 1;
  }

  /** `full` adds live output; both levels fold the same runs, so switching loses nothing. */
  #detail() {
    return this.details.value || this.#output ? 'full' : 'steps';
  }

  /**
   * Fold the events of a conversation from its first one, until it is closed.
   *
   * @param {string} id
   * @param {View} view
   */
  async #read(id, view) {
    const onRetry = (/** @type {Failure} */ error) => this.#unreadable(view, error);
    view.follower = this.subscriptions.follow(id, {
      afterSeq: 0,
      detail: this.#detail(),
      live: true,
      marks: true,
      newestRuns: this.namesMessage() ? undefined : NEWEST_RUNS,
      onRetry,
    });
    try {
      for await (const frame of view.follower) this.#buffer(id, view, frame);
    } catch (error) {
      if (error instanceof LogRestored) this.#reload(id, view);
      else this.#unreadable(view, /** @type {Failure} */ (error));
    }
  }

  /**
   * Drop the state of a conversation, and read the conversation from its first event.
   *
   * @param {string} id
   * @param {View} view
   */
  #reload(id, view) {
    view.state.value = { ...emptyConversation(id), title: view.state.value.title };
    view.frames = [];
    view.kept = null;
    this.#read(id, view);
  }

  #unreadable(/** @type {View} */ view, /** @type {Failure} */ error) {
    view.state.value = { ...view.state.value, replayed: true, error: explain(error) };
  }

  #change(/** @type {View} */ view, /** @type {Change} */ change) {
    view.kept?.push(change);
    view.state.value = change(view.state.value);
  }

  #buffer(/** @type {string} */ id, /** @type {View} */ view, /** @type {Frame} */ frame) {
    view.frames.push(frame);
    if (frame.type === 'subscribed') view.replaying = true;
    if (frame.type === 'replay.done') view.replaying = false;
    // A replay is shown as a whole, because the newest messages are at its end.
    if (view.scheduled || view.replaying) return;
    view.scheduled = true;
    soon(() => batch(() => this.#flush(id, view)));
  }

  #flush(/** @type {string} */ id, /** @type {View} */ view) {
    view.scheduled = false;
    for (const frame of joined(view.frames.splice(0))) this.#apply(id, view, frame);
  }

  #apply(/** @type {string} */ id, /** @type {View} */ view, /** @type {Frame} */ frame) {
    switch (frame.type) {
      case 'subscribed':
        if (frame.after_seq) {
          view.kept = [];
          this.#readEarlier(id, view, frame.after_seq);
        }
        this.#change(view, (conversation) => foldSubscribed(conversation, frame));
        if (view.state.value.title === null) this.#readTitle(id, view);
        return;
      case 'replay.done':
        return this.#change(view, foldReplayDone);
      default:
        this.#change(view, (conversation) => fold(conversation, frame));
        this.onEvent(id, frame);
        if (isCut(frame)) this.#readWhole(id, view, [frame]);
    }
  }

  /**
   * Read the events up to a number, and fold them before what was received since.
   *
   * @param {string} id
   * @param {View} view
   * @param {number} through
   */
  async #readEarlier(id, view, through) {
    const { follower } = view;
    /** @type {EventFrame[] | null} */
    let events = null;
    let pause = 0;
    while (!events) {
      // The newest runs are drawn first.
      await new Promise((resolve) => setTimeout(resolve, pause));
      if (this.#views.get(id) !== view || view.follower !== follower) return;
      try {
        events = await this.api.events(id, { through, detail: 'steps' });
      } catch (error) {
        const failure = /** @type {Failure} */ (error);
        if (isTransient(failure)) pause = READ_AGAIN_MS;
        else {
          // The next connection, for example of another person, reads the conversation again.
          follower?.return();
          return this.#unreadable(view, failure);
        }
      }
    }
    if (view.follower !== follower) return;
    const start = { ...emptyConversation(id), title: view.state.value.title };
    const earlier = events.reduce(fold, start);
    const all = (view.kept ?? []).reduce((conversation, change) => change(conversation), earlier);
    view.kept = null;
    view.state.value = { ...all, earlier: false };
    this.#readWhole(id, view, events.filter(isCut));
  }

  /**
   * Read the long messages whose events were received without their text. After a failure they stay cut.
   *
   * @param {string} id
   * @param {View} view
   * @param {FrameOf<'message.completed'>[]} frames
   */
  async #readWhole(id, view, frames) {
    const { follower } = view;
    for (const { seq } of frames) {
      const [event] = await this.api
        .events(id, { after: seq - 1, through: seq, whole: true })
        .catch(() => []);
      // Another reading of the conversation, as after a restored log, may not have this message.
      if (view.follower !== follower) return;
      if (event) this.#change(view, (conversation) => foldWhole(conversation, event));
    }
  }

  async #readTitle(/** @type {string} */ id, /** @type {View} */ view) {
    try {
      const { title } = this.listed(id) ?? (await this.api.conversation(id));
      if (view.state.value.title === null)
        this.#change(view, (conversation) => ({ ...conversation, title: title ?? '' }));
    } catch {
      // Without a title the conversation stays `Untitled`; the subscription reports any error.
    }
  }

  #trim() {
    for (const [id, view] of this.#views) {
      if (this.#views.size <= MAX_SUBSCRIPTIONS) return;
      if (id === this.currentId.value || isBusy(view.state.value)) continue;
      this.#close(id);
    }
  }

  #close(/** @type {string} */ id) {
    this.#views.get(id)?.follower?.return();
    this.#views.delete(id);
  }
}
