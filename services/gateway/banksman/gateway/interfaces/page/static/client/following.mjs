/**
 * Following conversations over one connection: every stored event once and in order, across reconnections.
 *
 * The server sends each conversation once per connection. Its followers share this subscription, which begins at
 * the earliest position and has the highest detail that one of them needs.
 */

import { newId } from './connection.mjs';
import { LEVELS } from './levels.mjs';

const BUFFERED_FRAMES = 1000;
const RETRY_S = 1;
const DETAILS = ['final', 'steps', 'full'];

const rankOf = (type) => DETAILS.indexOf(LEVELS[type] ?? 'final');

/** The id of the conversation whose log contains a run: the run's id begins with it. */
export function conversationOf(runId) {
  return runId.slice(0, runId.lastIndexOf('-'));
}

/** The log was restored from a backup, so earlier events may differ. Follow it again from 0. */
export class LogRestored extends Error {
  constructor(conversationId) {
    super(`The log of ${conversationId} was restored. Follow it again from the start.`);
    this.name = 'LogRestored';
    this.conversationId = conversationId;
  }
}

/** One consumer of a conversation, as an async iterator. It buffers at most 1,000 frames and reads further ones later. */
export class Follower {
  /**
   * @param {Subscription} subscription
   * @param {object} options
   * @param {number} options.afterSeq
   * @param {string} options.detail
   * @param {boolean} options.live
   * @param {boolean} [options.marks] whether `subscribed` and `replay.done` are delivered in order with the events
   * @param {(error: Error) => void} [options.onRetry] is called when a subscription was refused and will be requested again
   * @param {AbortSignal} [options.signal]
   */
  constructor(subscription, { afterSeq, detail, live, marks = false, onRetry = () => {}, signal }) {
    this.subscription = subscription;
    this.live = live;
    this.marks = marks;
    this.onRetry = onRetry;
    this.signal = signal;
    this.seq = afterSeq;
    this.#setDetail(detail);
    /** Whether it has all events up to `lastSeq` of its subscription. */
    this.inSync = false;
    this.buffer = [];
    this.pending = null;
    this.failure = null;
    this.ended = false;
    this.abort = () => this.fail(signal.reason);
    signal?.addEventListener('abort', this.abort);
    if (signal?.aborted) this.abort();
  }

  /**
   * Subscribe again, with the same or another level of detail. `steps` and `full` have the same stored events, so a
   * change between them omits none.
   */
  subscribe(detail) {
    this.#setDetail(detail);
    this.subscription.subscribe();
  }

  /** Take the next stored event of the conversation; earlier ones are dropped. */
  takeEvent(frame) {
    if (frame.seq <= this.seq) return;
    const wanted = rankOf(frame.type) <= this.rank;
    if (wanted && this.buffer.length >= BUFFERED_FRAMES) {
      this.inSync = false;
      return;
    }
    this.seq = frame.seq;
    if (wanted) this.#push(frame);
  }

  /** Take live output, which may be lost. */
  takeLive(frame) {
    if (this.live && rankOf(frame.type) <= this.rank && this.buffer.length < BUFFERED_FRAMES)
      this.#push(frame);
  }

  /** Take `subscribed` or `replay.done`. */
  takeMark(frame) {
    if (this.marks) this.#push(frame);
  }

  fail(error) {
    if (this.ended) return;
    this.failure = error;
    this.#leave();
    this.pending?.reject(error);
    this.pending = null;
  }

  next() {
    if (this.buffer.length) {
      const value = this.buffer.shift();
      // The buffer was full, and later events were dropped.
      if (!this.inSync && !this.buffer.length && !this.ended) this.subscription.subscribe();
      return Promise.resolve({ value, done: false });
    }
    if (this.failure) return Promise.reject(this.failure);
    if (this.ended) return Promise.resolve({ value: undefined, done: true });
    return new Promise((resolve, reject) => (this.pending = { resolve, reject }));
  }

  return() {
    this.#leave();
    this.buffer = [];
    this.pending?.resolve({ value: undefined, done: true });
    this.pending = null;
    return Promise.resolve({ value: undefined, done: true });
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  #setDetail(detail) {
    this.rank = DETAILS.indexOf(detail);
    if (this.rank < 0) throw new TypeError(`detail: expected one of ${DETAILS.join(', ')}, got ${detail}`);
    // `full` adds nothing but live output, which this follower does not want without `live`.
    this.subscribedRank = this.live ? this.rank : Math.min(this.rank, DETAILS.indexOf('steps'));
  }

  #push(frame) {
    if (!this.pending) return void this.buffer.push(frame);
    this.pending.resolve({ value: frame, done: false });
    this.pending = null;
  }

  #leave() {
    this.ended = true;
    this.signal?.removeEventListener('abort', this.abort);
    this.subscription.remove(this);
  }
}

/** The subscription of one connection to one conversation. */
class Subscription {
  constructor(connection, conversationId, onEmpty) {
    this.connection = connection;
    this.conversationId = conversationId;
    this.onEmpty = onEmpty;
    this.followers = new Set();
    this.logEpoch = null;
    this.afterSeq = 0;
    this.lastSeq = 0;
    /** @type {string | null} the id of a request whose `subscribed` has not arrived */
    this.requested = null;
  }

  add(follower) {
    this.followers.add(follower);
    this.subscribe();
  }

  remove(follower) {
    this.followers.delete(follower);
    if (!this.followers.size) this.onEmpty();
  }

  /** Read on from the earliest event that a follower needs. Before `welcome` this does nothing. */
  async subscribe() {
    if (!this.connection.ready || !this.followers.size) return;
    const followers = [...this.followers];
    const afterSeq = Math.min(...followers.map((follower) => follower.seq));
    const id = newId();
    this.requested = id;
    this.afterSeq = afterSeq;
    const frame = {
      type: 'subscribe',
      conversation_id: this.conversationId,
      after_seq: afterSeq,
      detail: DETAILS[Math.max(...followers.map((follower) => follower.subscribedRank))],
      ...(this.logEpoch ? { log_epoch: this.logEpoch } : {}),
    };
    try {
      await this.connection.request(frame, { id, resend: false });
    } catch (error) {
      if (error.code === 'offline' || this.requested !== id) return;
      if (!error.retryable) return this.#fail(error);
      this.#each((follower) => follower.onRetry(error));
      this.connection.clock.after(
        error.retryAfterS ?? RETRY_S,
        () => this.requested === id && this.subscribe(),
      );
    }
  }

  receive(frame) {
    if (frame.type === 'resync_required') return this.#fail(new LogRestored(this.conversationId));
    if (frame.type === 'subscribed') return this.#subscribed(frame);
    // Until `subscribed`, frames belong to an earlier subscription: a follower that lacks events before them takes none.
    const inSync = [...this.followers].filter((follower) => follower.inSync);
    if (!inSync.length) return;
    if (frame.type === 'replay.done') return inSync.forEach((follower) => follower.takeMark(frame));
    if (!frame.data) return;
    if (frame.seq === undefined) return inSync.forEach((follower) => follower.takeLive(frame));
    this.#receiveEvent(frame, inSync);
  }

  #receiveEvent(frame, followers) {
    if (frame.seq <= this.lastSeq) return;
    if (this.logEpoch && frame.log_epoch !== this.logEpoch)
      return this.#fail(new LogRestored(this.conversationId));
    if (frame.prev_seq !== this.lastSeq) {
      // A subscription that is already requested sends the missing events.
      if (this.requested === null) this.subscribe();
      return;
    }
    this.lastSeq = frame.seq;
    this.logEpoch = frame.log_epoch;
    for (const follower of followers) follower.takeEvent(frame);
  }

  #subscribed(frame) {
    if (frame.reply_to !== this.requested) return;
    this.requested = null;
    if (this.logEpoch && frame.log_epoch !== this.logEpoch)
      return this.#fail(new LogRestored(this.conversationId));
    // An empty log has no epoch yet: the first event contains it.
    this.logEpoch = frame.log_epoch || null;
    this.lastSeq = this.afterSeq;
    this.#each((follower) => {
      follower.inSync = true;
      follower.takeMark(frame);
    });
  }

  #each(action) {
    for (const follower of [...this.followers]) action(follower);
  }

  #fail(error) {
    this.#each((follower) => follower.fail(error));
  }
}

/** The subscriptions of one client. */
export class Subscriptions {
  constructor(connection) {
    this.connection = connection;
    /** @type {Map<string, Subscription>} */
    this.open = new Map();
  }

  follow(conversationId, options) {
    let subscription = this.open.get(conversationId);
    if (!subscription) {
      subscription = new Subscription(this.connection, conversationId, () => this.release(conversationId));
      this.open.set(conversationId, subscription);
    }
    const follower = new Follower(subscription, options);
    if (!follower.ended) subscription.add(follower);
    return follower;
  }

  /** Subscribe again on a new connection. */
  resume() {
    for (const subscription of this.open.values()) subscription.subscribe();
  }

  receive(frame) {
    this.open.get(frame.conversation_id)?.receive(frame);
  }

  fail(error) {
    for (const subscription of [...this.open.values()])
      for (const follower of [...subscription.followers]) follower.fail(error);
  }

  /** End the subscription to a conversation that has no follower. */
  release(conversationId) {
    if (this.open.get(conversationId)?.followers.size) return;
    this.open.delete(conversationId);
    if (!this.connection.ready) return;
    this.connection
      .request({ type: 'unsubscribe', conversation_id: conversationId }, { resend: false })
      .catch(() => {});
  }
}
