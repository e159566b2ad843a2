/** The open conversations: each is subscribed to, and its events are folded into its state. */

import { batch, computed, signal } from '@preact/signals';

import { pathOf } from '../branches.mjs';
import { emptyConversation, fold, foldAccepted, foldReplayDone, foldSubscribed, isBusy, placement } from '../events.mjs';
import { explain } from '../strings.mjs';

const MAX_SUBSCRIPTIONS = 12;

/** `full` adds live output; both levels fold the same runs, so switching loses nothing. */
const detailOf = (details) => (details ? 'full' : 'steps');

/** Run at the next animation frame. A hidden page gets none, so run after 50 ms instead. */
const soon = (action) => (document.hidden ? setTimeout(action, 50) : requestAnimationFrame(action));

/**
 * @typedef {object} View
 * @property {import('@preact/signals').Signal} state the folded state of the conversation
 * @property {object[]} frames received, and not yet folded
 * @property {boolean} scheduled whether the frames are about to be folded
 * @property {boolean} reading whether a subscription is requested and not confirmed
 * @property {boolean} resetting whether the state was dropped, to be read again from the first event
 */

export class OpenConversations {
  /** @type {Map<string, View>} least recently followed first */
  #views = new Map();
  #count = signal(0);
  #output = false;

  /**
   * @param {object} options
   * @param {import('../client/api.mjs').Api} options.api
   * @param {import('../client/connection.mjs').Connection} options.socket
   * @param {import('@preact/signals').Signal<string | null>} options.currentId the conversation that is shown
   * @param {import('@preact/signals').Signal<boolean>} options.details whether live output is received
   * @param {(id: string) => {title?: string} | undefined} options.listed the entry of the list of conversations
   * @param {(id: string, frame: object) => void} options.onEvent is called after an event was folded
   */
  constructor({ api, socket, currentId, details, listed, onEvent }) {
    Object.assign(this, { api, socket, currentId, details, listed, onEvent });
    /** The chosen versions by conversation; see `pathOf`. */
    this.chosen = signal({});
    this.current = computed(() => {
      this.#count.value;
      return this.stateOf(currentId.value) ?? null;
    });
    this.path = computed(() => (this.current.value ? pathOf(this.current.value, this.chosen.value[currentId.value]) : []));
  }

  /** Subscribe to a conversation and return its folded state as a signal. @param {string} id */
  follow(id) {
    let view = this.#views.get(id);
    if (view) {
      this.#views.delete(id);
      this.#views.set(id, view);
      return view.state;
    }
    view = { state: signal(emptyConversation(id)), frames: [], scheduled: false, reading: false, resetting: false };
    this.#views.set(id, view);
    this.#count.value += 1;
    this.#subscribe(id, 0);
    this.#trim();
    return view.state;
  }

  /** Receive the output of running commands, even without details, until the returned function is called. */
  followOutput(on) {
    this.#output = on;
    this.subscribeAgain();
    return () => on && this.followOutput(false);
  }

  /** Subscribe to all open conversations, on a new connection or with another level of detail. */
  subscribeAgain() {
    for (const [id, view] of this.#views) this.#subscribe(id, view.state.value.lastSeq);
  }

  /** The folded state of a conversation; undefined if it is not open. @param {string | null} id */
  stateOf(id) {
    return this.#views.get(id)?.state.value;
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

  /** @param {string} id @param {string} title */
  setTitle(id, title) {
    const view = this.#views.get(id);
    if (view) view.state.value = { ...view.state.value, title };
  }

  /** Show a message that was accepted, before its event arrives. @param {string} id */
  accepted(id, message) {
    const view = this.#views.get(id);
    if (view) view.state.value = foldAccepted(view.state.value, message);
  }

  /** @param {string} id */
  drop(id) {
    this.#views.delete(id);
    this.#count.value += 1;
  }

  /** Take a frame of an open conversation. @returns {boolean} false for any other frame */
  received(frame) {
    const view = frame.conversation_id ? this.#views.get(frame.conversation_id) : null;
    if (view) this.#buffer(frame.conversation_id, view, frame);
    return Boolean(view);
  }

  async #subscribe(id, afterSeq) {
    const view = this.#views.get(id);
    if (!view || !this.socket.ready) return;
    view.reading = true;
    try {
      const detail = detailOf(this.details.value || this.#output);
      // Not sent again after a reconnection, because `subscribeAgain` sends a new request then.
      await this.socket.request({ type: 'subscribe', conversation_id: id, after_seq: afterSeq, detail }, { resend: false });
    } catch (error) {
      if (error.code !== 'offline') this.#unreadable(id, error);
    }
  }

  #unreadable(id, error) {
    const view = this.#views.get(id);
    if (!view) return;
    view.reading = false;
    view.resetting = false;
    view.state.value = { ...view.state.value, replayed: true, error: explain(error) };
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
        // During a reset, frames of the earlier subscription may still arrive.
        if (frame.data && !view.resetting) this.#applyEvent(id, view, frame);
    }
  }

  #applyEvent(id, view, frame) {
    switch (placement(view.state.value, frame)) {
      case 'epoch':
        return this.#reload(id, view);
      case 'gap':
        // A subscription that is already requested sends the missing events.
        if (!view.reading) this.#subscribe(id, view.state.value.lastSeq);
        return;
      default:
        view.state.value = fold(view.state.value, frame);
        this.onEvent(id, frame);
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
    try {
      const { title } = this.listed(id) ?? (await this.api.conversation(id));
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

  #trim() {
    for (const [id, view] of this.#views) {
      if (this.#views.size <= MAX_SUBSCRIPTIONS) return;
      if (id === this.currentId.value || isBusy(view.state.value)) continue;
      this.#views.delete(id);
      if (this.socket.ready) this.socket.request({ type: 'unsubscribe', conversation_id: id }, { resend: false }).catch(() => {});
    }
  }
}
