/**
 * The websocket connection: hello, heartbeat, reconnection with full jitter, and requests that survive it.
 *
 * This module reads only the envelope of frames. `onFrame` receives every frame except `welcome` and the errors
 * of requests; `onWelcome` resumes the subscriptions.
 */

/** @import {Ack, Frame, State, Welcome} from './types.d.ts' */
/** @typedef {{now: number, after: (seconds: number, action: () => void) => Timer, cancel: (timer: Timer) => void}} Clock `now` in seconds */
/** @typedef {ReturnType<typeof setTimeout> | undefined} Timer */
/** @typedef {{code: string, message: string, retryable?: boolean, retry_after_s?: number | null, details?: Record<string, unknown> | null}} Failure */
/** @typedef {{frame: Frame, resolve: (reply: Ack) => void, reject: (error: Error) => void, timer: Timer, resend: boolean}} Request */

export const PROTOCOL = 'banksman.v1';
const BACKOFF_MIN_S = 0.5;
const BACKOFF_MAX_S = 30;
const RESTART_BOUND_S = 2;
const RESTART_ATTEMPTS = 12;
const RATE_LIMIT_BACKOFF_S = 5;
const DEFAULT_HEARTBEAT_S = 20;
const REQUEST_TIMEOUT_S = 60;
const OPEN_TIMEOUT_S = 15;
/** Minimum time between two restarts of the heartbeat timer: a replay has thousands of frames. */
const HEARTBEAT_STEP_S = 0.1;
/** While a reply is expected, a gateway that sends nothing for so long is probed, and lost without an answer. */
const SILENT_S = 2;
const PROBE_S = 2.5;
/** The size of a frame that a gateway accepts; it closes the connection for a larger one. */
const MAX_FRAME_BYTES = 256 * 1024;
const LONE_SURROGATE = /\p{Surrogate}/gu;

/** A request failed: by an `error` frame, a timeout or a lost connection. */
export class RequestError extends Error {
  /** @param {Failure} failure */
  constructor({ code, message, retryable = false, retry_after_s: retryAfterS = null, details = null }) {
    super(message);
    this.name = 'RequestError';
    this.code = code;
    this.retryable = retryable;
    this.retryAfterS = retryAfterS;
    this.details = details;
  }
}

/** The reaction to a close code. @param {number} code */
export function reactionTo(code) {
  switch (code) {
    case 4401:
      return 'unauthorized';
    case 4426:
      return 'outdated';
    case 1000:
    case 1009:
    case 4400:
    case 4403:
    case 4409:
      return 'stopped';
    default:
      return 'retry';
  }
}

/**
 * Seconds before attempt `n` (from 0): full jitter between 0.5 and a limit. The limit is 2 for the first
 * twelve attempts, about 15 seconds, so that a client returns within 2 s of the restart of a gateway; then it
 * doubles up to 30.
 *
 * @param {number} n
 */
export function backoff(n, random = Math.random) {
  const bound = Math.min(
    BACKOFF_MAX_S,
    RESTART_BOUND_S * 2 ** Math.max(0, Math.min(n, 20) - RESTART_ATTEMPTS + 1),
  );
  return BACKOFF_MIN_S + random() * (bound - BACKOFF_MIN_S);
}

/** A new id for a frame, which is the idempotency key of the request. */
export function newId(prefix = 'q') {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return prefix + Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** @type {Clock} */
const systemClock = {
  get now() {
    return performance.now() / 1000;
  },
  after: (seconds, action) => setTimeout(action, seconds * 1000),
  cancel: (timer) => clearTimeout(timer),
};

export class Connection {
  /**
   * @param {object} options
   * @param {(protocol: string) => WebSocket} options.open opens the socket
   * @param {() => Record<string, unknown>} options.hello the fields of `hello` except type and id
   * @param {(frame: Welcome) => void} options.onWelcome
   * @param {(frame: Frame) => void} options.onFrame
   * @param {(state: State) => void} options.onState
   * @param {Clock} [options.clock]
   * @param {() => number} [options.random]
   * @param {() => boolean} [options.busy] whether frames are expected soon, such as the text of a model
   */
  constructor({
    open,
    hello,
    onWelcome,
    onFrame,
    onState,
    clock = systemClock,
    random = Math.random,
    busy = () => false,
  }) {
    this.open = open;
    this.hello = hello;
    this.onWelcome = onWelcome;
    this.onFrame = onFrame;
    this.onState = onState;
    this.clock = clock;
    this.random = random;
    this.busy = busy;
    /** @type {WebSocket | null} */
    this.socket = null;
    this.ready = false;
    this.attempt = 0;
    this.heartbeatS = DEFAULT_HEARTBEAT_S;
    /** @type {number | null} */
    this.drainDelayS = null;
    /** @type {Map<string, Request>} */
    this.waiting = new Map();
    /** @type {Timer} */
    this.retryTimer = undefined;
    /** @type {Timer} */
    this.watchTimer = undefined;
    /** The last restart of the heartbeat timer, and whether a reply was expected; null while another timer runs. */
    this.heartbeat = /** @type {{at: number, expects: boolean} | null} */ (null);
  }

  /** Connect, and drop any earlier connection. */
  connect() {
    this.#drop();
    this.clock.cancel(this.retryTimer);
    this.onState({ phase: 'connecting' });
    const socket = this.open(PROTOCOL);
    this.socket = socket;
    socket.onopen = () => this.#send({ type: 'hello', id: newId('h'), ...this.hello() });
    socket.onmessage = (event) => this.#receive(event.data);
    socket.onclose = (event) => this.#closed(socket, event.code, event.reason);
    // `close` follows. In Node an error without a handler ends the process.
    socket.onerror = () => {};
    this.#watch(OPEN_TIMEOUT_S, () => this.#lost());
  }

  /** Close without reconnecting. */
  close() {
    this.clock.cancel(this.retryTimer);
    this.#drop();
  }

  /** Reject every request that waits for its reply. @param {Error} error */
  fail(error) {
    for (const id of [...this.waiting.keys()]) this.#take(id)?.reject(error);
  }

  /**
   * Send a frame and wait for its reply. With `resend` it is sent again under the same id after a
   * reconnection; without `resend`, the request fails when the connection is lost.
   *
   * @param {Frame} frame
   * @param {{resend?: boolean, id?: string, timeoutS?: number}} [options]
   * @returns {Promise<Ack>} the reply
   * @throws {RequestError}
   */
  request(frame, { resend = true, id = newId(), timeoutS = REQUEST_TIMEOUT_S } = {}) {
    const full = { ...frame, id };
    if (isTooLarge(full)) return Promise.reject(new RequestError(TOO_LARGE));
    return new Promise((resolve, reject) => {
      const timer = this.clock.after(timeoutS, () => {
        this.waiting.delete(id);
        reject(
          new RequestError({ code: 'timeout', message: `No reply within ${timeoutS} s.`, retryable: true }),
        );
      });
      this.waiting.set(id, { frame: full, resolve, reject, timer, resend });
      if (this.ready) {
        this.#send(full);
        this.#restartHeartbeat();
      } else if (!resend) this.#take(id)?.reject(offline());
    });
  }

  #receive(/** @type {string} */ text) {
    let frame;
    try {
      frame = JSON.parse(text);
    } catch {
      return;
    }
    this.#restartHeartbeat();
    if (frame.type === 'welcome') return this.#welcomed(frame);
    if (frame.type === 'server.draining') this.drainDelayS = frame.reconnect_after_s ?? 1;
    const request = this.#take(frame.reply_to);
    if (request && frame.type === 'error') return request.reject(new RequestError(frame));
    request?.resolve(frame);
    this.onFrame(frame);
  }

  #welcomed(/** @type {Welcome} */ frame) {
    this.ready = true;
    this.attempt = 0;
    this.heartbeatS = frame.heartbeat_s ?? DEFAULT_HEARTBEAT_S;
    this.#restartHeartbeat();
    this.onState({ phase: 'online' });
    // Read before `onWelcome`, whose own requests are sent at once and must not be sent twice.
    const pending = [...this.waiting.values()];
    this.onWelcome(frame);
    for (const entry of pending) this.#send(entry.frame);
  }

  /** Remove a request that was answered or failed. @param {string} id */
  #take(id) {
    const entry = this.waiting.get(id);
    this.waiting.delete(id);
    if (entry) this.clock.cancel(entry.timer);
    return entry;
  }

  #send(/** @type {Frame} */ frame) {
    if (this.socket?.readyState === 1) this.socket.send(JSON.stringify(frame, wellFormed));
  }

  #restartHeartbeat() {
    if (!this.ready) return;
    const expects = this.waiting.size > 0 || this.busy();
    const at = this.clock.now;
    const { heartbeat } = this;
    // A timer for each of the thousands of frames of a replay takes longer than reading them.
    if (heartbeat?.expects === expects && at - heartbeat.at < HEARTBEAT_STEP_S) return;
    if (expects) this.#watch(Math.min(SILENT_S, this.heartbeatS), () => this.probe());
    else this.#watch(this.heartbeatS, () => this.#ping(this.heartbeatS));
    this.heartbeat = { at, expects };
  }

  /** Find out soon whether the gateway still answers, for example after the page was hidden. */
  probe() {
    if (this.ready) this.#ping(PROBE_S);
  }

  #ping(/** @type {number} */ withinS) {
    this.#send({ type: 'ping', id: newId('p'), t: Date.now() });
    this.#watch(withinS, () => this.#lost());
  }

  #watch(/** @type {number} */ seconds, /** @type {() => void} */ action) {
    this.heartbeat = null;
    this.clock.cancel(this.watchTimer);
    this.watchTimer = this.clock.after(seconds, action);
  }

  #lost() {
    this.#drop();
    this.#retry();
  }

  #drop() {
    this.clock.cancel(this.watchTimer);
    this.ready = false;
    const socket = this.socket;
    this.socket = null;
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
    this.#failUnresendable();
  }

  #closed(/** @type {WebSocket} */ socket, /** @type {number} */ code, /** @type {string} */ reason) {
    if (socket !== this.socket) return;
    this.socket = null;
    this.ready = false;
    this.clock.cancel(this.watchTimer);
    this.#failUnresendable();
    const reaction = reactionTo(code);
    if (reaction === 'retry') this.#retry(code);
    else this.onState({ phase: reaction, reason: reason || `closed with code ${code}`, code });
  }

  #failUnresendable() {
    for (const [id, entry] of this.waiting) if (!entry.resend) this.#take(id)?.reject(offline());
  }

  /** @param {number} [code] */
  #retry(code) {
    const base = this.drainDelayS ?? backoff(this.attempt, this.random);
    const seconds = code === 4429 ? Math.max(base, RATE_LIMIT_BACKOFF_S) : base;
    this.drainDelayS = null;
    this.attempt += 1;
    this.onState({ phase: 'offline', retryInS: seconds });
    this.clock.cancel(this.retryTimer);
    this.retryTimer = this.clock.after(seconds, () => this.connect());
  }
}

const TOO_LARGE = { code: 'frame_too_large', message: 'A frame may have at most 256 KiB.' };

function isTooLarge(/** @type {Frame} */ frame) {
  const text = JSON.stringify(frame, wellFormed);
  return text.length * 3 > MAX_FRAME_BYTES && new TextEncoder().encode(text).length > MAX_FRAME_BYTES;
}

/** Replace half of a character, as a cut text may have at its end: the gateway refuses it. @param {string} _key @param {unknown} value */
function wellFormed(_key, value) {
  return typeof value === 'string' ? value.replace(LONE_SURROGATE, '\uFFFD') : value;
}

function offline() {
  return new RequestError({ code: 'offline', message: 'The connection was lost.', retryable: true });
}
