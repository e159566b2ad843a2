/** A client of one gateway: requests and events over one websocket that reconnects, files and lists over HTTP. */

import { Api } from './api.mjs';
import { Connection, RequestError, newId } from './connection.mjs';
import { Subscriptions, conversationOf } from './following.mjs';

/** @import * as T from './types.d.ts' */
/** @typedef {{resolve: (value?: undefined) => void, reject: (error: Error) => void, timer: ReturnType<typeof setTimeout>}} Waiting */

const REQUEST_TIMEOUT_S = 60;
const CONNECT_TIMEOUT_S = 30;
const RETRY_S = 0.5;

/**
 * Connect to a gateway.
 *
 * @param {string | URL} url the address of the gateway: scheme, host and port
 * @param {T.Options} [options]
 * @returns {Promise<Client>} once the gateway has accepted the client
 * @throws {RequestError} `unauthorized` if it refuses the token, `timeout` if it does not respond in time
 */
export async function connect(url, options = {}) {
  const client = new Client(url, options);
  try {
    await client.opened(options.connectTimeoutS ?? CONNECT_TIMEOUT_S);
  } catch (error) {
    client.close();
    throw error;
  }
  return client;
}

export class Client extends Api {
  #connection;
  #subscriptions;
  /** @type {Set<Waiting>} */
  #waiting = new Set();
  /** @type {RequestError | null} */
  #ending = null;

  /** @param {string | URL} url @param {T.Options & {clock?: import('./connection.mjs').Clock}} [options] */
  constructor(
    url,
    {
      token = null,
      name = 'banksman-client-js',
      WebSocket = globalThis.WebSocket,
      fetch,
      onState = () => {},
      clock,
    } = {},
  ) {
    if (!WebSocket)
      throw new TypeError(
        'This version of Node has no WebSocket: pass that of the package `ws` as the option WebSocket.',
      );
    const tokenOf = typeof token === 'function' ? token : () => token;
    super({ base: String(url).replace(/\/?$/, '/'), token: tokenOf, ...(fetch ? { fetch } : {}) });
    /** The last `welcome` of the gateway. @type {T.Welcome | null} */
    this.welcome = null;
    this.#connection = new Connection({
      open: (protocol) => /** @type {WebSocket} */ (new WebSocket(this.socketUrl(), protocol)),
      ...(clock ? { clock } : {}),
      hello: () => ({ client: { name }, ...(tokenOf() ? { token: tokenOf() } : {}) }),
      onWelcome: (frame) => this.#welcomed(frame),
      onFrame: (frame) => this.#subscriptions.receive(frame),
      onState: (state) => {
        onState(state);
        this.#changed(state);
      },
    });
    this.#subscriptions = new Subscriptions(this.#connection);
    this.#connection.connect();
  }

  /** Resolves once the gateway has accepted the client. */
  opened(timeoutS = CONNECT_TIMEOUT_S) {
    if (this.#ending) return Promise.reject(this.#ending);
    if (this.#connection.ready) return Promise.resolve();
    return new Promise((resolve, reject) => {
      const fail = () => this.#settle(entry, timedOut('No gateway responded', timeoutS));
      const entry = { resolve, reject, timer: setTimeout(fail, timeoutS * 1000) };
      this.#waiting.add(entry);
    });
  }

  /** Disconnect and reject waiting requests. Runs continue. */
  close() {
    this.#connection.close();
    this.#end(new RequestError({ code: 'closed', message: 'The client was closed.' }));
  }

  /** Create a conversation and return its id. @param {T.NewConversation} [options] */
  async createConversation({ title, assistant, model, systemPromptId, settings, ...options } = {}) {
    const fields = { title, assistant, model, system_prompt_id: systemPromptId, settings };
    const ack = await this.request({ type: 'conversation.create', ...fields }, options);
    const id = /** @type {string} */ (ack.conversation_id);
    // The gateway has subscribed this connection to the conversation; the number of subscriptions is limited.
    this.#subscriptions.release(id);
    return id;
  }

  /**
   * Send a user's message, which starts a run, or steers the open one.
   *
   * @param {string} conversationId
   * @param {T.Content} content
   * @param {T.SendOptions} [options]
   */
  async send(conversationId, content, { mode, overrides, variables, attachments, ...options } = {}) {
    const frame = {
      type: 'chat.send',
      conversation_id: conversationId,
      content,
      mode,
      overrides,
      variables,
      attachments,
    };
    return startedRun(await this.request(frame, options));
  }

  /**
   * Cancel a run. `outcome` waits for its end.
   *
   * @param {T.StartedRun | string} run
   * @param {T.RequestOptions & {reason?: string}} [options]
   */
  cancel(run, { reason, ...options } = {}) {
    return this.request({ type: 'run.cancel', run_id: idOf(run), reason }, options);
  }

  /**
   * Decide an approval request. `already_resolved` in the reply means that an earlier decision counts.
   *
   * @param {string} approvalId
   * @param {T.Decision} decision
   */
  reply(approvalId, { all, decisions, remember, on_reject, digests, ...options }) {
    return this.request(
      { type: 'approval.reply', approval_id: approvalId, all, decisions, remember, on_reject, digests },
      options,
    );
  }

  /**
   * Provide the value that a workflow or the server of a tool requested, or decline to.
   *
   * @param {string} inputId
   * @param {unknown} [value]
   * @param {T.RequestOptions & {decline?: boolean}} [options]
   */
  provide(inputId, value, { decline, ...options } = {}) {
    return this.request({ type: 'input.reply', request_id: inputId, value, decline }, options);
  }

  /**
   * Start a workflow; with a conversation, in its workspace.
   *
   * @param {string} workflow
   * @param {Record<string, unknown>} [parameters]
   * @param {T.RequestOptions & {conversationId?: string}} [options]
   */
  async startWorkflow(workflow, parameters = {}, { conversationId, ...options } = {}) {
    const frame = { type: 'workflow.start', workflow, parameters, conversation_id: conversationId };
    return startedRun(await this.request(frame, options));
  }

  /**
   * Iterate over the events of a conversation without end: stored ones once each and in order, across reconnections.
   * With `live`, also text and output while they are produced; these may be lost.
   *
   * @template {boolean} [Live=false]
   * @param {string} conversationId
   * @param {Omit<T.FollowOptions, 'live'> & {live?: Live}} [options]
   * @returns {AsyncIterableIterator<Live extends true ? T.EventFrame : T.StoredEvent>}
   */
  follow(conversationId, { afterSeq = 0, detail = 'steps', live, signal } = {}) {
    if (this.#ending) throw this.#ending;
    const follower = this.#subscriptions.follow(conversationId, {
      afterSeq,
      detail,
      live: live ?? false,
      signal,
    });
    // Without `marks` it delivers events only.
    return /** @type {any} */ (follower);
  }

  /**
   * Wait for the end of a run and return its outcome: the `data` of `run.finished`.
   *
   * @param {T.StartedRun | string} run
   * @param {{signal?: AbortSignal}} [options]
   */
  async outcome(run, { signal } = {}) {
    const runId = idOf(run);
    for await (const event of this.follow(conversationOf(runId), { detail: 'final', signal })) {
      if (event.type === 'run.finished' && event.run_id === runId) return event.data;
    }
    throw this.#ending;
  }

  /**
   * Send a frame and return its reply. It is sent again after a reconnection and after a temporary refusal,
   * always under the same id, so that it has one effect.
   *
   * @param {T.Frame} frame
   * @param {T.RequestOptions} [options]
   */
  async request(frame, { requestId = newId(), timeoutS = REQUEST_TIMEOUT_S } = {}) {
    const deadline = Date.now() + timeoutS * 1000;
    for (;;) {
      if (this.#ending) throw this.#ending;
      try {
        return await this.#connection.request(frame, {
          id: requestId,
          timeoutS: (deadline - Date.now()) / 1000,
        });
      } catch (failure) {
        const error = /** @type {RequestError} */ (failure);
        const pauseS = error.retryAfterS ?? RETRY_S;
        if (!error.retryable || error.code === 'timeout' || Date.now() + pauseS * 1000 > deadline)
          throw error;
        await new Promise((resolve) => setTimeout(resolve, pauseS * 1000));
      }
    }
  }

  #welcomed(/** @type {T.Welcome} */ frame) {
    this.welcome = frame;
    this.#subscriptions.resume();
    for (const entry of [...this.#waiting]) this.#settle(entry);
  }

  #changed(/** @type {T.State} */ { phase, reason }) {
    if (phase === 'unauthorized' || phase === 'outdated' || phase === 'stopped')
      this.#end(new RequestError({ code: phase, message: `The gateway ended the connection: ${reason}` }));
  }

  #end(/** @type {RequestError} */ error) {
    this.#ending ??= error;
    for (const entry of [...this.#waiting]) this.#settle(entry, error);
    this.#connection.fail(error);
    this.#subscriptions.fail(error);
  }

  /** @param {Waiting} entry @param {Error} [error] without one, it succeeds */
  #settle(entry, error) {
    this.#waiting.delete(entry);
    clearTimeout(entry.timer);
    if (error) entry.reject(error);
    else entry.resolve();
  }
}

const idOf = (/** @type {T.StartedRun | string} */ run) => (typeof run === 'string' ? run : run.runId);

/** @param {T.Ack} ack @returns {T.StartedRun} */
function startedRun({ run_id, message_id: messageId = null }) {
  const runId = /** @type {string} */ (run_id);
  return { runId, messageId, conversationId: conversationOf(runId) };
}

function timedOut(/** @type {string} */ what, /** @type {number} */ seconds) {
  return new RequestError({ code: 'timeout', message: `${what} within ${seconds} s.`, retryable: true });
}
