/** The HTTP API: conversations, workflows, assistants and files. */

import { ROUTES } from './routes.mjs';

/** @import {EventFrame} from './frames.d.ts' */
/** @import {Replies} from './replies.d.ts' */
/** @typedef {keyof typeof ROUTES} Operation */
/** @typedef {Record<string, unknown>} Parameters */
/** @template {Operation} O @typedef {O extends keyof Replies ? Replies[O] : null} Reply */
/** @template T @typedef {{items: T[], next: number | null}} Numbered a page; `next` is the `after` of the next one */

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

  /** Where users sign in; without an `authorization_endpoint` if the gateway knows no provider. */
  provider() {
    return this.#json('sign_in.read');
  }

  /** Exchange the code of a provider for a token. @param {object} code */
  signIn(code) {
    return this.#json('sign_in.finish', {}, code);
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
    return this.#json('conversation.list', { limit, pinned, archived, label, q: query, cursor });
  }

  conversation(/** @type {string} */ id) {
    return this.#json('conversation.read', { conversation_id: id });
  }

  renameConversation(/** @type {string} */ id, /** @type {string} */ title) {
    return this.#json('conversation.rename', { conversation_id: id }, { title });
  }

  workflow(/** @type {string} */ name) {
    return this.#json('workflow.read', { name });
  }

  createWorkflow(/** @type {object} */ workflow) {
    return this.#json('workflow.create', {}, workflow);
  }

  replaceWorkflow(/** @type {string} */ name, /** @type {object} */ workflow) {
    return this.#json('workflow.update', { name }, workflow);
  }

  deleteWorkflow(/** @type {string} */ name) {
    return this.#json('workflow.delete', { name });
  }

  /** The workflow and the parameters that a text names. @param {string} text a command or plain language */
  parseWorkflow(text) {
    return this.#json('workflow.parse', {}, { text });
  }

  assistantRevisions(/** @type {string} */ id) {
    return this.#items('assistant.revisions', { assistant_id: id });
  }

  assistantRevision(/** @type {string} */ id, /** @type {number} */ revision) {
    return this.#json('assistant.revision', { assistant_id: id, revision });
  }

  restoreAssistant(/** @type {string} */ id, /** @type {number} */ revision) {
    return this.#json('assistant.restore', { assistant_id: id, revision });
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

  /** Let a model write the title, unless a person has chosen it. @param {string} id */
  generateTitle(id) {
    return this.#json('conversation.title', { conversation_id: id });
  }

  /** Replace the older messages by a summary for the model. @param {string} id */
  compactConversation(id) {
    return this.#json('conversation.compact', { conversation_id: id });
  }

  /** Pin, archive or label a conversation. @param {string} id @param {{pinned?: boolean, archived?: boolean, labels?: string[]}} marks */
  markConversation(id, marks) {
    return this.#json('conversation.rename', { conversation_id: id }, marks);
  }

  /**
   * Messages that contain a text, newest first.
   *
   * @param {string} text
   * @param {{cursor?: string | null, limit?: number}} [page]
   */
  search(text, { cursor = null, limit = 20 } = {}) {
    return this.#json('conversation.search', { q: text, limit, cursor });
  }

  /** Every stored event of a conversation, as frames with uncut texts. @param {string} id */
  events(id) {
    return this.#all(async (after) => {
      const page = await this.#fetch('conversation.events', {
        conversation_id: id,
        after_seq: after,
        whole: true,
      });
      return /** @type {Numbered<EventFrame>} */ (await page.json());
    });
  }

  deleteConversation(/** @type {string} */ id) {
    return this.#json('conversation.delete', { conversation_id: id });
  }

  workflowCategories() {
    return this.#json('workflow.categories');
  }

  workflows() {
    return this.#items('workflow.list');
  }

  /** The tenant's open approval requests. */
  approvals() {
    return this.#items('approval.list');
  }

  /** Take a request out of the user's inbox; it stays open. @param {string} approvalId */
  setAside(approvalId) {
    return this.#json('approval.aside', { approval_id: approvalId });
  }

  /** The key with which a browser subscribes to notifications. */
  pushOffer() {
    return this.#json('push.read');
  }

  /** Register a device for approval requests, or renew its registration. @param {object} subscription */
  registerDevice(subscription) {
    return this.#json('device.register', {}, subscription);
  }

  removeDevice(/** @type {string} */ id) {
    return this.#json('device.remove', { device_id: id });
  }

  /** The rules of the tenant that come before those of its assistants. */
  policy() {
    return this.#json('policy.read');
  }

  /** Replace the policy; refused if another revision than `policy.revision` is stored. @param {object} policy */
  replacePolicy(policy) {
    return this.#json('policy.update', {}, policy);
  }

  /** The remembered decisions, which apply to further calls. */
  remembered() {
    return this.#items('remembered.list');
  }

  withdrawRemembered(/** @type {string} */ approvalId) {
    return this.#json('remembered.withdraw', { approval_id: approvalId });
  }

  /** The values that workflows wait for. */
  inputs() {
    return this.#items('input.list');
  }

  /** The state of a run, with its outcome once it has ended. @param {string} id */
  run(id) {
    return this.#json('run.read', { run_id: id });
  }

  /**
   * A page of the calls of a run with complete parameters and results. `next` is the `after` of the next page.
   *
   * @param {string} runId
   */
  calls(runId, { after = 0, limit = 50 } = {}) {
    return this.#json('run.calls', { run_id: runId, after, limit });
  }

  /** The runs of a conversation, without their outcomes. @param {string} conversationId */
  runs(conversationId) {
    return this.#items('run.list', { conversation_id: conversationId });
  }

  /**
   * Start a run; `branch` names the message that it follows.
   *
   * @param {string} conversationId
   * @param {object} message
   */
  startRun(conversationId, message) {
    return this.#json('chat.send', { conversation_id: conversationId }, message);
  }

  /** The steps of a run in the order in which they began. @param {string} runId */
  steps(runId) {
    return this.#all((after) => this.#json('step.list', { run_id: runId, after }));
  }

  /** A step with its request and its result. @param {string} runId @param {string} stepId */
  step(runId, stepId) {
    return this.#json('step.read', { run_id: runId, step_id: stepId });
  }

  assistants() {
    return this.#items('assistant.list');
  }

  /** The models that runs can use, with price and context. */
  models() {
    return this.#items('model.list');
  }

  assistant(/** @type {string} */ id) {
    return this.#json('assistant.read', { assistant_id: id });
  }

  createAssistant(/** @type {object} */ assistant) {
    return this.#json('assistant.create', {}, assistant);
  }

  /**
   * Replace an assistant; refused if another revision than `assistant.revision` is stored.
   *
   * @param {string} id
   * @param {object} assistant
   */
  replaceAssistant(id, assistant) {
    return this.#json('assistant.update', { assistant_id: id }, assistant);
  }

  deleteAssistant(/** @type {string} */ id) {
    return this.#json('assistant.delete', { assistant_id: id });
  }

  /** The system prompt that the runs of an assistant would begin with. @param {object} assistant */
  previewAssistant(assistant) {
    return this.#json('assistant.preview', {}, assistant);
  }

  tools() {
    return this.#items('tool.list');
  }

  /** The toolchains, repositories and registries that the operator offers to workspaces. */
  workspaceOptions() {
    return this.#json('workspace.options');
  }

  /** Who searches the web for models; needs the right `admin`, as do the three methods below. */
  searchProvider() {
    return this.#json('search_provider.read');
  }

  /** @param {{provider: string, url: string | null, api_key?: string}} provider */
  setSearchProvider(provider) {
    return this.#json('search_provider.set', {}, provider);
  }

  deleteSearchProvider() {
    return this.#json('search_provider.delete');
  }

  /** Search once with the tenant's provider. */
  testSearchProvider() {
    return this.#json('search_provider.test');
  }

  /** Create a conversation. @param {{assistant?: string, source?: object}} conversation */
  newConversation(conversation) {
    return this.#json('conversation.create', {}, conversation);
  }

  /** The schedules, each with its last run. */
  schedules() {
    return this.#items('schedule.list');
  }

  /** When each schedule starts in the next two weeks. */
  comingStarts() {
    return this.#items('schedule.coming');
  }

  /** A schedule with its last runs and their status. @param {string} id */
  schedule(id) {
    return this.#json('schedule.read', { schedule_id: id });
  }

  createSchedule(/** @type {object} */ schedule) {
    return this.#json('schedule.create', {}, schedule);
  }

  replaceSchedule(/** @type {string} */ id, /** @type {object} */ schedule) {
    return this.#json('schedule.update', { schedule_id: id }, schedule);
  }

  deleteSchedule(/** @type {string} */ id) {
    return this.#json('schedule.delete', { schedule_id: id });
  }

  /** Start a schedule now. @param {string} id */
  runSchedule(id) {
    return this.#json('schedule.run', { schedule_id: id });
  }

  /** The prompts of the MCP servers that an assistant uses. @param {string} assistant */
  mcpPrompts(assistant) {
    return this.#items('mcp.prompts', { assistant_id: assistant });
  }

  /** The text of a prompt. @param {string} server @param {string} name @param {Json} values */
  mcpPrompt(server, name, values) {
    return this.#json('mcp.prompt', { server_id: server }, { name, arguments: values });
  }

  /** The servers of the Model Context Protocol; needs the right `admin`, as do the methods below. */
  mcpServers() {
    return this.#items('mcp.list');
  }

  mcpServer(/** @type {string} */ id) {
    return this.#json('mcp.read', { server_id: id });
  }

  createMcpServer(/** @type {object} */ server) {
    return this.#json('mcp.create', {}, server);
  }

  /**
   * Replace the configuration of a server; refused if another revision than `server.revision` is stored.
   *
   * @param {string} id
   * @param {object} server
   */
  replaceMcpServer(id, server) {
    return this.#json('mcp.update', { server_id: id }, server);
  }

  deleteMcpServer(/** @type {string} */ id) {
    return this.#json('mcp.delete', { server_id: id });
  }

  /** List the tools of a server again. @param {string} id */
  lookAtMcpServer(id) {
    return this.#json('mcp.look', { server_id: id });
  }

  /** Approve the shown tools of a server. @param {string} digest its `changes_digest` @param {string} id */
  approveMcpServer(id, digest) {
    return this.#json('mcp.approve', { server_id: id }, { digest });
  }

  /** Begin a sign-in at a server. where the browser goes @param {string} id @param {object} options */
  beginMcpSignIn(id, options) {
    return this.#json('mcp.sign_in', { server_id: id }, options);
  }

  /** Where an authorization server sends the browser back after a sign-in. */
  mcpCallbackUrl() {
    return this.#url('mcp.callback').href;
  }

  endMcpSignIn(/** @type {string} */ id) {
    return this.#json('mcp.sign_out', { server_id: id });
  }

  /** The servers at which each user signs in, with the sign-ins of this user. */
  mcpAccounts() {
    return this.#items('mcp_account.list');
  }

  /** Begin a sign-in of this user. @param {string} id @param {object} options */
  beginOwnSignIn(id, options) {
    return this.#json('mcp_account.sign_in', { server_id: id }, options);
  }

  endOwnSignIn(/** @type {string} */ id) {
    return this.#json('mcp_account.sign_out', { server_id: id });
  }

  /** The servers of models: those of the operator, then those of the tenant. */
  modelServers() {
    return this.#items('model_server.list');
  }

  /** @param {string} name @param {{base_url?: string, api?: string, api_key?: string}} server */
  setModelServer(name, server) {
    return this.#json('model_server.set', { name }, server);
  }

  deleteModelServer(/** @type {string} */ name) {
    return this.#json('model_server.delete', { name });
  }

  /** Request the list of models from a server. @param {string} name */
  testModelServer(name) {
    return this.#json('model_server.test', { name });
  }

  /** Exchange the text of an invitation for its key, once. @param {string} text */
  claimInvitation(text) {
    return this.#json('invitation.claim', {}, { text });
  }

  /** What the user wants of every reply. */
  instructions() {
    return this.#json('instructions.read');
  }

  setInstructions(/** @type {string} */ text) {
    return this.#json('instructions.set', {}, { text });
  }

  /** The API keys that were created here. */
  keys() {
    return this.#items('key.list');
  }

  /** Create a key; its text is in this response only. @param {{user: string, rights: string[]}} key */
  createKey(key) {
    return this.#json('key.create', {}, key);
  }

  revokeKey(/** @type {string} */ id) {
    return this.#json('key.revoke', { key_id: id });
  }

  /** The identity providers of the gateway, with the roles that people of the tenant need. */
  identityProviders() {
    return this.#items('identity_provider.list');
  }

  /** The state of queues and streams; needs the right `operator`, as do the methods below. */
  operatorOverview() {
    return this.#json('operator.overview');
  }

  /** The state of each process, and of the NATS servers. */
  services() {
    return this.#json('operator.services');
  }

  /** A page of the tenants. @param {string} [after] The last tenant of the previous page. */
  tenants(after) {
    return this.#json('operator.tenants', { after });
  }

  /**
   * A page of the audit trail, newest first.
   *
   * @param {{action?: string, actor?: string, tenant?: string}} wanted an empty value selects all
   * @param {number} [after] `next` of the previous page
   */
  audit(wanted, after) {
    return this.#json('audit.list', { ...wanted, limit: 50, after });
  }

  /**
   * A page of the decided approval requests, newest first.
   *
   * @param {{text?: string, outcome?: string, by?: string, tool?: string, since?: string}} wanted an empty value selects all
   * @param {number | null} [after] `next` of the previous page
   */
  decisions(wanted, after) {
    return this.#json('decision.list', { ...wanted, limit: 50, after });
  }

  /** All entries, oldest first. @param {'jsonl' | 'csv'} format @param {object} wanted */
  auditExport(wanted, format) {
    return this.#blob('audit.export', { ...wanted, format });
  }

  /** A page of the messages that could not be handled, oldest first. @param {number} [after] `next` of the previous page */
  deadLetters(after) {
    return this.#json('dead_letter.list', { limit: 50, after });
  }

  /** A message that could not be handled, with the beginning of its content. @param {number} id */
  deadLetter(id) {
    return this.#json('dead_letter.read', { letter_id: id });
  }

  discardDeadLetter(/** @type {number} */ id) {
    return this.#json('dead_letter.discard', { letter_id: id });
  }

  /**
   * A page of the runs that have not ended, oldest first.
   *
   * @param {'queued' | 'queued_workflow' | 'awaiting_approval' | 'awaiting_input'} state
   * @param {{after?: number, tenant?: string}} [options] `after` is `next` of the previous page; `tenant` selects one
   */
  openRuns(state, { after, tenant } = {}) {
    return this.#json('operator.runs', { state, after, tenant });
  }

  cancelOpenRun(/** @type {string} */ tenant, /** @type {string} */ runId, /** @type {string} */ reason) {
    return this.#json('operator.cancel', { tenant, run_id: runId }, { reason });
  }

  replayDeadLetter(/** @type {number} */ id) {
    return this.#json('dead_letter.replay', { letter_id: id });
  }

  usage() {
    return this.#json('usage');
  }

  files(/** @type {string} */ conversationId) {
    return this.#json('file.list', { conversation_id: conversationId });
  }

  file(/** @type {string} */ conversationId, /** @type {string} */ path) {
    return this.#blob('file.read', { conversation_id: conversationId, path });
  }

  /** What changed in a file since a run began. @param {string} conversationId @param {string} path @param {string} since */
  diff(conversationId, path, since) {
    return this.#json('file.diff', { conversation_id: conversationId, path, since });
  }

  /** All changes of a workspace as a patch. @param {string} conversationId */
  patch(conversationId) {
    return this.#blob('file.patch', { conversation_id: conversationId });
  }

  /** All files of a workspace as a zip file. @param {string} conversationId */
  archive(conversationId) {
    return this.#blob('file.archive', { conversation_id: conversationId });
  }

  /**
   * The processes of a conversation that outlive their calls, as a list with `items`.
   *
   * @param {string} conversationId
   */
  processes(conversationId) {
    return this.#json('process.list', { conversation_id: conversationId });
  }

  /** The last part of the output of a process. @param {string} conversationId @param {string} processId */
  processOutput(conversationId, processId) {
    return this.#json('process.read', { conversation_id: conversationId, process_id: processId });
  }

  stopProcess(/** @type {string} */ conversationId, /** @type {string} */ processId) {
    return this.#json('process.stop', { conversation_id: conversationId, process_id: processId }, {});
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
    return this.#blob('output.read', { run_id: runId, tool_call_id: toolCallId });
  }

  #url(/** @type {Operation} */ operation, /** @type {Parameters} */ parameters = {}) {
    return new URL(addressOf(ROUTES[operation][1], parameters), this.base);
  }

  /**
   * @template {{[O in Operation]: Reply<O> extends {items: unknown[]} ? O : never}[Operation]} O
   * @param {O} operation
   * @param {Parameters} [parameters]
   * @returns {Promise<Extract<Reply<O>, {items: unknown[]}>['items']>}
   */
  async #items(operation, parameters) {
    return (await this.#json(operation, parameters)).items;
  }

  /**
   * The items of all pages.
   *
   * @template T
   * @param {(after: number) => Promise<Numbered<T>>} read
   */
  async #all(read) {
    /** @type {T[]} */
    const items = [];
    /** @type {number | null} */
    let after = 0;
    while (after !== null) {
      const page = await read(after);
      items.push(...page.items);
      after = page.next;
    }
    return items;
  }

  async #blob(/** @type {Operation} */ operation, /** @type {Parameters} */ parameters) {
    return (await this.#fetch(operation, parameters)).blob();
  }

  /**
   * @template {Operation} O
   * @param {O} operation
   * @param {Parameters} [parameters]
   * @param {unknown} [body] sent as JSON
   * @returns {Promise<Reply<O>>}
   */
  async #json(operation, parameters, body) {
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
