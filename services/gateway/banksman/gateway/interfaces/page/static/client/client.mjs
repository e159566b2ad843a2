/** A client of one gateway: requests and events over one websocket that reconnects, files and lists over HTTP. */

import { Api } from './api.mjs';
import { Connection, RequestError, newId } from './connection.mjs';
import { Subscriptions, conversationOf } from './following.mjs';

const REQUEST_TIMEOUT_S = 60;
const CONNECT_TIMEOUT_S = 30;
const RETRY_S = 0.5;

/**
 * Connect to a gateway.
 *
 * @param {string | URL} url the address of the gateway: scheme, host and port
 * @param {import('./index.d.ts').Options} [options]
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
  #waiting = new Set();
  #ending = null;

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
    this.welcome = null;
    this.#connection = new Connection({
      open: (protocol) => new WebSocket(this.socketUrl(), protocol),
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
      const entry = { resolve, reject };
      const timer = setTimeout(
        () => this.#settle(entry, 'reject', timedOut('No gateway responded', timeoutS)),
        timeoutS * 1000,
      );
      Object.assign(entry, { timer });
      this.#waiting.add(entry);
    });
  }

  /** Disconnect and reject waiting requests. Runs continue. */
  close() {
    this.#connection.close();
    this.#end(new RequestError({ code: 'closed', message: 'The client was closed.' }));
  }

  /** Create a conversation and return its id. */
  async createConversation({ title, assistant, model, systemPromptId, settings, ...options } = {}) {
    const fields = { title, assistant, model, system_prompt_id: systemPromptId, settings };
    const { conversation_id: id } = await this.request({ type: 'conversation.create', ...fields }, options);
    // The gateway has subscribed this connection to the conversation; the number of subscriptions is limited.
    this.#subscriptions.release(id);
    return id;
  }

  /** Send a user's message, which starts a run, or steers the open one. */
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

  /** Cancel a run. `outcome` waits for its end. */
  cancel(run, { reason, ...options } = {}) {
    return this.request({ type: 'run.cancel', run_id: idOf(run), reason }, options);
  }

  /** Decide an approval request. `already_resolved` in the reply means that an earlier decision counts. */
  reply(approvalId, { all, decisions, remember, on_reject, digests, ...options }) {
    return this.request(
      { type: 'approval.reply', approval_id: approvalId, all, decisions, remember, on_reject, digests },
      options,
    );
  }

  /** Provide the value that a workflow requested. */
  provide(inputId, value, options) {
    return this.request({ type: 'input.reply', request_id: inputId, value }, options);
  }

  /** Start a workflow; with a conversation, in its workspace. */
  async startWorkflow(workflow, parameters = {}, { conversationId, ...options } = {}) {
    const frame = { type: 'workflow.start', workflow, parameters, conversation_id: conversationId };
    return startedRun(await this.request(frame, options));
  }

  /**
   * Iterate over the events of a conversation without end: stored ones once each and in order, across reconnections.
   * With `live`, also text and output while they are produced; these may be lost.
   */
  follow(conversationId, { afterSeq = 0, detail = 'steps', live = false, signal } = {}) {
    if (this.#ending) throw this.#ending;
    return this.#subscriptions.follow(conversationId, { afterSeq, detail, live, signal });
  }

  /** Wait for the end of a run and return its outcome: the `data` of `run.finished`. */
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
      } catch (error) {
        const pauseS = error.retryAfterS ?? RETRY_S;
        if (!error.retryable || error.code === 'timeout' || Date.now() + pauseS * 1000 > deadline)
          throw error;
        await new Promise((resolve) => setTimeout(resolve, pauseS * 1000));
      }
    }
  }

  #welcomed(frame) {
    this.welcome = frame;
    this.#subscriptions.resume();
    for (const entry of [...this.#waiting]) this.#settle(entry, 'resolve');
  }

  #changed({ phase, reason }) {
    if (phase === 'unauthorized' || phase === 'outdated' || phase === 'stopped')
      this.#end(new RequestError({ code: phase, message: `The gateway ended the connection: ${reason}` }));
  }

  #end(error) {
    this.#ending ??= error;
    for (const entry of [...this.#waiting]) this.#settle(entry, 'reject', error);
    this.#connection.fail(error);
    this.#subscriptions.fail(error);
  }

  #settle(entry, how, value) {
    this.#waiting.delete(entry);
    clearTimeout(entry.timer);
    entry[how](value);
  }
}

const idOf = (run) => (typeof run === 'string' ? run : run.runId);

function startedRun({ run_id: runId, message_id: messageId = null }) {
  return { runId, messageId, conversationId: conversationOf(runId) };
}

function timedOut(what, seconds) {
  return new RequestError({ code: 'timeout', message: `${what} within ${seconds} s.`, retryable: true });
}
