/**
 * Following conversations over one connection: every stored event once and in order, across reconnections.
 *
 * The server sends each conversation once per connection. Its followers share this subscription, which begins at
 * the earliest position and has the highest detail that one of them needs.
 */

import { newId } from './connection.mjs';
import { LEVELS } from './levels.mjs';

/** @import {Connection, RequestError} from './connection.mjs' */
/** @import {Detail, EventFrame, FollowOptions, Frame, LiveFrame, StoredEvent} from './types.d.ts' */
/** @import {ReplayDone, ResyncRequired, Subscribed} from './types.d.ts' */
/** @typedef {Subscribed | ReplayDone} Mark */
/** @typedef {Mark | EventFrame} Followed */
/** @typedef {IteratorResult<Followed, undefined>} Step */
/** @typedef {FollowOptions & {marks?: boolean, newestRuns?: number, onRetry?: (error: RequestError) => void}} FollowerOptions */

const BUFFERED_FRAMES = 1000;
const RETRY_S = 1;
/** @type {Detail[]} */
const DETAILS = ['final', 'steps', 'full'];

/** @type {Record<string, string>} */
const levels = LEVELS;
/** @param {string} type */
const rankOf = (type) => DETAILS.indexOf(/** @type {Detail} */ (levels[type] ?? 'final'));

/** The id of the conversation whose log contains a run: the run's id begins with it. @param {string} runId */
export function conversationOf(runId) {
  return runId.slice(0, runId.lastIndexOf('-'));
}

/** The log was restored from a backup, so earlier events may differ. Follow it again from 0. */
export class LogRestored extends Error {
  constructor(/** @type {string} */ conversationId) {
    super(`The log of ${conversationId} was restored. Follow it again from the start.`);
    this.name = 'LogRestored';
    this.conversationId = conversationId;
  }
}

/** One consumer of a conversation, as an async iterator. It buffers at most 1,000 frames and reads further ones later. */
export class Follower {
  /**
   * @param {Subscription} subscription
   * @param {FollowerOptions} options `marks`: whether `subscribed` and `replay.done` are delivered in order with the
   *   events; `newestRuns`: how many runs to begin with instead of all, if this is the only follower of the
   *   conversation; `onRetry` is called when a subscription was refused and will be requested again
   */
  constructor(
    subscription,
    { afterSeq = 0, detail = 'steps', live = false, marks = false, newestRuns, onRetry = () => {}, signal },
  ) {
    this.subscription = subscription;
    this.live = live;
    this.marks = marks;
    this.newestRuns = newestRuns;
    this.onRetry = onRetry;
    this.signal = signal;
    this.seq = afterSeq;
    this.rank = this.#rankFor(detail);
    /** Whether it has all events up to `lastSeq` of its subscription. */
    this.inSync = false;
    /** @type {Followed[]} */
    this.buffer = [];
    /** @type {{resolve: (step: Step) => void, reject: (error: Error) => void} | null} */
    this.pending = null;
    /** @type {Error | null} */
    this.failure = null;
    this.ended = false;
    this.abort = () => this.fail(signal?.reason);
    signal?.addEventListener('abort', this.abort);
    if (signal?.aborted) this.abort();
  }

  /**
   * Subscribe again, with the same or another level of detail. `steps` and `full` have the same stored events, so a
   * change between them omits none.
   *
   * @param {Detail} detail
   */
  subscribe(detail) {
    this.rank = this.#rankFor(detail);
    this.subscription.subscribe();
  }

  /** Take the next stored event of the conversation; earlier ones are dropped. @param {StoredEvent} frame */
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

  /** Take live output, which may be lost. @param {LiveFrame} frame */
  takeLive(frame) {
    if (this.live && rankOf(frame.type) <= this.rank && this.buffer.length < BUFFERED_FRAMES)
      this.#push(frame);
  }

  /** Take `subscribed` or `replay.done`. @param {Mark} frame */
  takeMark(frame) {
    if (this.marks) this.#push(frame);
  }

  fail(/** @type {Error} */ error) {
    if (this.ended) return;
    this.failure = error;
    this.#leave();
    this.pending?.reject(error);
    this.pending = null;
  }

  /** @returns {Promise<Step>} */
  next() {
    const value = this.buffer.shift();
    if (value) {
      // The buffer was full, and later events were dropped.
      if (!this.inSync && !this.buffer.length && !this.ended) this.subscription.subscribe();
      return Promise.resolve({ value, done: false });
    }
    if (this.failure) return Promise.reject(this.failure);
    if (this.ended) return Promise.resolve({ value: undefined, done: true });
    return new Promise((resolve, reject) => (this.pending = { resolve, reject }));
  }

  /** @returns {Promise<Step>} */
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

  #rankFor(/** @type {Detail} */ detail) {
    const rank = DETAILS.indexOf(detail);
    if (rank < 0) throw new TypeError(`detail: expected one of ${DETAILS.join(', ')}, got ${detail}`);
    return rank;
  }

  /** `full` adds nothing but live output, which this follower does not want without `live`. */
  get subscribedRank() {
    return this.live ? this.rank : Math.min(this.rank, DETAILS.indexOf('steps'));
  }

  #push(/** @type {Followed} */ frame) {
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
  /** @param {Connection} connection @param {string} conversationId @param {() => void} onEmpty */
  constructor(connection, conversationId, onEmpty) {
    this.connection = connection;
    this.conversationId = conversationId;
    this.onEmpty = onEmpty;
    /** @type {Set<Follower>} */
    this.followers = new Set();
    /** @type {string | null} */
    this.logEpoch = null;
    this.afterSeq = 0;
    this.lastSeq = 0;
    /** @type {string | null} the id of a request whose `subscribed` has not arrived */
    this.requested = null;
  }

  add(/** @type {Follower} */ follower) {
    this.followers.add(follower);
    this.subscribe();
  }

  remove(/** @type {Follower} */ follower) {
    this.followers.delete(follower);
    if (!this.followers.size) this.onEmpty();
  }

  /** Read on from the earliest event that a follower needs. Before `welcome` this does nothing. */
  async subscribe() {
    if (!this.connection.ready || !this.followers.size) return;
    const followers = [...this.followers];
    const [{ newestRuns, seq }] = followers;
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
      ...(newestRuns && followers.length === 1 && !seq ? { newest_runs: newestRuns } : {}),
    };
    try {
      await this.connection.request(frame, { id, resend: false });
    } catch (failure) {
      const error = /** @type {RequestError} */ (failure);
      if (error.code === 'offline' || this.requested !== id) return;
      if (!error.retryable) return this.#fail(error);
      this.#each((follower) => follower.onRetry(error));
      this.connection.clock.after(
        error.retryAfterS ?? RETRY_S,
        () => this.requested === id && this.subscribe(),
      );
    }
  }

  receive(/** @type {Mark | ResyncRequired | EventFrame} */ frame) {
    if (frame.type === 'resync_required') return this.#fail(new LogRestored(this.conversationId));
    if (frame.type === 'subscribed') return this.#subscribed(frame);
    // Until `subscribed`, frames belong to an earlier subscription: a follower that lacks events before them takes none.
    const inSync = [...this.followers].filter((follower) => follower.inSync);
    if (!inSync.length) return;
    if (frame.type === 'replay.done') return inSync.forEach((follower) => follower.takeMark(frame));
    if (!frame.data) return;
    if ('seq' in frame) this.#receiveEvent(frame, inSync);
    else inSync.forEach((follower) => follower.takeLive(frame));
  }

  #receiveEvent(/** @type {StoredEvent} */ frame, /** @type {Follower[]} */ followers) {
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

  #subscribed(/** @type {Subscribed} */ frame) {
    if (frame.reply_to !== this.requested) return;
    this.requested = null;
    if (this.logEpoch && frame.log_epoch !== this.logEpoch)
      return this.#fail(new LogRestored(this.conversationId));
    // An empty log has no epoch yet: the first event contains it.
    this.logEpoch = frame.log_epoch || null;
    this.lastSeq = frame.after_seq ?? this.afterSeq;
    this.#each((follower) => {
      follower.inSync = true;
      follower.seq = Math.max(follower.seq, frame.after_seq ?? 0);
      follower.takeMark(frame);
    });
  }

  #each(/** @type {(follower: Follower) => void} */ action) {
    for (const follower of [...this.followers]) action(follower);
  }

  #fail(/** @type {Error} */ error) {
    this.#each((follower) => follower.fail(error));
  }
}

/** The subscriptions of one client. */
export class Subscriptions {
  constructor(/** @type {Connection} */ connection) {
    this.connection = connection;
    /** @type {Map<string, Subscription>} */
    this.open = new Map();
  }

  follow(/** @type {string} */ conversationId, /** @type {FollowerOptions} */ options) {
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

  /** Take a frame of any type. @param {Frame} frame */
  receive(frame) {
    const subscription = this.open.get(/** @type {string} */ (frame.conversation_id));
    subscription?.receive(/** @type {Mark | ResyncRequired | EventFrame} */ (/** @type {unknown} */ (frame)));
  }

  fail(/** @type {Error} */ error) {
    for (const subscription of [...this.open.values()])
      for (const follower of [...subscription.followers]) follower.fail(error);
  }

  /** End the subscription to a conversation that has no follower. @param {string} conversationId */
  release(conversationId) {
    if (this.open.get(conversationId)?.followers.size) return;
    this.open.delete(conversationId);
    if (!this.connection.ready) return;
    this.connection
      .request({ type: 'unsubscribe', conversation_id: conversationId }, { resend: false })
      .catch(() => {});
  }
}
