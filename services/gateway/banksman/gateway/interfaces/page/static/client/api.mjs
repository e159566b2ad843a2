/** The HTTP API: conversations, workflows, assistants and files. */

import { ROUTES } from './routes.mjs';

/** @import {StoredEvent} from './types.d.ts' */
/** @import {Replies} from './replies.d.ts' */
/** @typedef {keyof typeof ROUTES} Operation */
/** @typedef {Record<string, unknown>} Parameters */
/** @template {Operation} O @typedef {O extends keyof Replies ? Replies[O] : null} Reply */
/** @template T @typedef {{items: T[], next: number | null}} Numbered a page; `next` is the `after` of the next one */

/** How many events a page of them has at most. */
const MAX_EVENTS = 1000;

/** An HTTP response that is not a success; status 0 if no response arrived. */
export class ApiError extends Error {
  /** @param {number} status @param {string} message @param {{code?: string | null, field?: string | null}} [error] */
  constructor(status, message, { code = null, field = null } = {}) {
    super(message);
    this.name = 'ApiError';
    this.status = status;
    this.code = code;
    this.field = field;
  }
}

export class Api {
  /**
   * @param {object} options
   * @param {string} options.base the URL of the gateway, or of the page, with a slash at its end
   * @param {() => string | null} options.token
   * @param {() => void} [options.onUnauthorized]
   * @param {typeof globalThis.fetch} [options.fetch]
   */
  constructor({
    base,
    token,
    onUnauthorized = () => {},
    fetch = (...request) => globalThis.fetch(...request),
  }) {
    this.base = base;
    this.token = token;
    this.onUnauthorized = onUnauthorized;
    this.fetch = fetch;
  }

  /** The websocket's URL at this gateway. */
  socketUrl() {
    const url = new URL('ws', this.base);
    url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
    return url.href;
  }

  /** @param {{query?: string, cursor?: string | null, limit?: number, pinned?: boolean, archived?: boolean, label?: string | null}} [options] */
  conversations({
    query = '',
    cursor = null,
    limit = 50,
    pinned = false,
    archived = false,
    label = null,
  } = {}) {
    return this.call('conversation.list', { limit, pinned, archived, label, q: query, cursor });
  }

  conversation(/** @type {string} */ id) {
    return this.call('conversation.read', { conversation_id: id });
  }

  renameConversation(/** @type {string} */ id, /** @type {string} */ title) {
    return this.call('conversation.rename', { conversation_id: id }, { title });
  }

  workflow(/** @type {string} */ name) {
    return this.call('workflow.read', { name });
  }

  /**
   * Create conversations from a file of exported ones.
   *
   * @param {Blob} file
   * @param {number} start `next` of the request before
   */
  async importFile(file, start) {
    return (await this.#fetch('conversation.import', { start }, file, 'application/octet-stream')).json();
  }

  /**
   * Messages that contain a text, newest first.
   *
   * @param {string} text
   * @param {{cursor?: string | null, limit?: number}} [page]
   */
  search(text, { cursor = null, limit = 20 } = {}) {
    return this.call('conversation.search', { q: text, limit, cursor });
  }

  /**
   * The stored events of a conversation, as frames.
   *
   * @param {string} id
   * @param {{after?: number, through?: number, detail?: string, whole?: boolean}} [options] `after` and `through`: number
   *   before the first one, and of the last one; `whole`: with uncut texts
   */
  events(id, { after: first = 0, through = Infinity, detail, whole } = {}) {
    return this.#all(async (after) => {
      const rest = through - after;
      const limit = rest < MAX_EVENTS ? rest : null;
      const page = { after_seq: after, limit, detail, whole };
      const response = await this.#fetch('conversation.events', { conversation_id: id, ...page });
      const { items, next } = /** @type {Numbered<StoredEvent>} */ (await response.json());
      return {
        items: items.filter(({ seq }) => seq <= through),
        next: next !== null && next < through ? next : null,
      };
    }, first);
  }

  deleteConversation(/** @type {string} */ id) {
    return this.call('conversation.delete', { conversation_id: id });
  }

  workflows() {
    return this.items('workflow.list');
  }

  /** The tenant's open approval requests. */
  approvals() {
    return this.items('approval.list');
  }

  /** The values that workflows wait for. */
  inputs() {
    return this.items('input.list');
  }

  /** The state of a run, with its outcome once it has ended. @param {string} id */
  run(id) {
    return this.call('run.read', { run_id: id });
  }

  /**
   * A page of the calls of a run with complete parameters and results. `next` is the `after` of the next page.
   *
   * @param {string} runId
   */
  calls(runId, { after = 0, limit = 50 } = {}) {
    return this.call('run.calls', { run_id: runId, after, limit });
  }

  /** The steps of a run in the order in which they began. @param {string} runId */
  steps(runId) {
    return this.#all((after) => this.call('step.list', { run_id: runId, after }));
  }

  assistants() {
    return this.items('assistant.list');
  }

  /** Where an authorization server sends the browser back after a sign-in. */
  mcpCallbackUrl() {
    return this.#url('mcp.callback').href;
  }

  usage() {
    return this.call('usage');
  }

  files(/** @type {string} */ conversationId) {
    return this.call('file.list', { conversation_id: conversationId });
  }

  file(/** @type {string} */ conversationId, /** @type {string} */ path) {
    return this.blob('file.read', { conversation_id: conversationId, path });
  }

  upload(/** @type {string} */ conversationId, /** @type {string} */ path, /** @type {BodyInit} */ body) {
    return this.#fetch(
      'file.write',
      { conversation_id: conversationId, path },
      body,
      'application/octet-stream',
    );
  }

  deleteFile(/** @type {string} */ conversationId, /** @type {string} */ path) {
    return this.#fetch('file.delete', { conversation_id: conversationId, path });
  }

  /** The complete output of a call whose result was truncated. @param {string} runId @param {string} toolCallId */
  output(runId, toolCallId) {
    return this.blob('output.read', { run_id: runId, tool_call_id: toolCallId });
  }

  #url(/** @type {Operation} */ operation, /** @type {Parameters} */ parameters = {}) {
    return new URL(addressOf(ROUTES[operation][1], parameters), this.base);
  }

  /**
   * The items of a list.
   *
   * @template {{[O in Operation]: Reply<O> extends {items: unknown[]} ? O : never}[Operation]} O
   * @param {O} operation
   * @param {Parameters} [parameters]
   * @returns {Promise<Extract<Reply<O>, {items: unknown[]}>['items']>}
   */
  async items(operation, parameters) {
    return (await this.call(operation, parameters)).items;
  }

  /**
   * The items of all pages.
   *
   * @template T
   * @param {(after: number) => Promise<Numbered<T>>} read
   * @param {number} [first]
   */
  async #all(read, first = 0) {
    /** @type {T[]} */
    const items = [];
    /** @type {number | null} */
    let after = first;
    while (after !== null) {
      const page = await read(after);
      items.push(...page.items);
      after = page.next;
    }
    return items;
  }

  /** The bytes of a file. @param {Operation} operation @param {Parameters} [parameters] */
  async blob(operation, parameters) {
    return (await this.#fetch(operation, parameters)).blob();
  }

  /**
   * Call an operation. The methods above have their own names for those that other programs use most.
   *
   * @template {Operation} O
   * @param {O} operation
   * @param {Parameters} [parameters] of the path and the query
   * @param {unknown} [body] sent as JSON
   * @returns {Promise<Reply<O>>}
   */
  async call(operation, parameters, body) {
    const request = body === undefined ? [] : [JSON.stringify(body), 'application/json'];
    const response = await this.#fetch(operation, parameters, ...request);
    return response.status === 204 ? /** @type {Reply<O>} */ (null) : response.json();
  }

  /**
   * @param {Operation} operation
   * @param {Parameters} [parameters]
   * @param {BodyInit} [body]
   * @param {string | null} [contentType]
   */
  async #fetch(operation, parameters, body = undefined, contentType = null) {
    const [method] = ROUTES[operation];
    const url = this.#url(operation, parameters);
    const token = this.token();
    const headers = {
      ...(contentType ? { 'content-type': contentType } : {}),
      ...(token ? { authorization: `Bearer ${token}` } : {}),
    };
    let response;
    try {
      response = await this.fetch(url, { method, body, headers, redirect: 'error' });
    } catch {
      throw new ApiError(0, 'The gateway cannot be reached.');
    }
    if (response.ok) return response;
    if (response.status === 401) this.onUnauthorized();
    throw await errorOf(response);
  }
}

async function errorOf(/** @type {Response} */ response) {
  const fallback = `The gateway responded with ${response.status}.`;
  try {
    const { error } = await response.json();
    return new ApiError(response.status, error?.message ?? fallback, error ?? {});
  } catch {
    return new ApiError(response.status, fallback);
  }
}

/**
 * The address of an operation, relative to the URL of the gateway. Parameters that the path does not name form the
 * query; those without a value are omitted. The segments of the parameter `path` stay segments.
 *
 * @param {string} template
 * @param {Record<string, unknown>} parameters
 */
function addressOf(template, parameters) {
  const named = new Set();
  const path = template.slice(1).replace(/\{(\w+)\}/g, (_, name) => {
    named.add(name);
    const value = `${parameters[name]}`;
    return name === 'path' ? value.split('/').map(encodeURIComponent).join('/') : encodeURIComponent(value);
  });
  const query = Object.entries(parameters).filter(([name, value]) => !named.has(name) && isGiven(value));
  return query.length
    ? `${path}?${new URLSearchParams(query.map(([name, value]) => [name, `${value}`]))}`
    : path;
}

/** @param {unknown} value */
const isGiven = (value) => value !== undefined && value !== null && value !== '' && value !== false;
