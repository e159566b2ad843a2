/** The HTTP API: conversations, workflows, assistants and files. */

import { ROUTES } from './routes.mjs';

/** An HTTP response that is not a success; status 0 if no response arrived. */
export class ApiError extends Error {
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

  /** Exchange the code of a provider for a token. */
  signIn(code) {
    return this.#json('sign_in.finish', {}, code);
  }

  conversations({ query = '', cursor = null, limit = 50, pinned = false, archived = false } = {}) {
    return this.#json('conversation.list', { limit, pinned, archived, q: query, cursor });
  }

  conversation(id) {
    return this.#json('conversation.read', { conversation_id: id });
  }

  renameConversation(id, title) {
    return this.#json('conversation.rename', { conversation_id: id }, { title });
  }

  workflow(name) {
    return this.#json('workflow.read', { name });
  }

  createWorkflow(workflow) {
    return this.#json('workflow.create', {}, workflow);
  }

  replaceWorkflow(name, workflow) {
    return this.#json('workflow.update', { name }, workflow);
  }

  deleteWorkflow(name) {
    return this.#json('workflow.delete', { name });
  }

  /** The workflow and the parameters that a text names. @param {string} text a command or plain language */
  parseWorkflow(text) {
    return this.#json('workflow.parse', {}, { text });
  }

  assistantRevisions(id) {
    return this.#items('assistant.revisions', { assistant_id: id });
  }

  assistantRevision(id, revision) {
    return this.#json('assistant.revision', { assistant_id: id, revision });
  }

  restoreAssistant(id, revision) {
    return this.#json('assistant.restore', { assistant_id: id, revision });
  }

  /** Create a conversation with the messages of an exported one. @param {{conversation?: object, events: object[]}} exported */
  importConversation(exported) {
    return this.#json('conversation.import', {}, exported);
  }

  /** Let a model write the title, unless a person has chosen it. */
  generateTitle(id) {
    return this.#json('conversation.title', { conversation_id: id });
  }

  /** Replace the older messages by a summary for the model. @returns {Promise<{run_id: string}>} */
  compactConversation(id) {
    return this.#json('conversation.compact', { conversation_id: id });
  }

  /** Pin or archive a conversation. @param {{pinned?: boolean, archived?: boolean}} marks */
  markConversation(id, marks) {
    return this.#json('conversation.rename', { conversation_id: id }, marks);
  }

  /** Messages that contain a text, newest first. */
  search(text, { cursor = null, limit = 20 } = {}) {
    return this.#json('conversation.search', { q: text, limit, cursor });
  }

  /** Every stored event of a conversation, as frames. */
  events(id) {
    return this.#all((after) => this.#json('conversation.events', { conversation_id: id, after_seq: after }));
  }

  deleteConversation(id) {
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

  /** Take a request out of the user's inbox; it stays open. */
  setAside(approvalId) {
    return this.#json('approval.aside', { approval_id: approvalId });
  }

  /** The key with which a browser subscribes to notifications. */
  pushOffer() {
    return this.#json('push.read');
  }

  /** Register a device for approval requests, or renew its registration. */
  registerDevice(subscription) {
    return this.#json('device.register', {}, subscription);
  }

  removeDevice(id) {
    return this.#json('device.remove', { device_id: id });
  }

  /** The rules of the tenant that come before those of its assistants. */
  policy() {
    return this.#json('policy.read');
  }

  /** Replace the policy; refused if another revision than `policy.revision` is stored. */
  replacePolicy(policy) {
    return this.#json('policy.update', {}, policy);
  }

  /** The remembered decisions, which apply to further calls. */
  remembered() {
    return this.#items('remembered.list');
  }

  withdrawRemembered(approvalId) {
    return this.#json('remembered.withdraw', { approval_id: approvalId });
  }

  /** The values that workflows wait for. */
  inputs() {
    return this.#items('input.list');
  }

  /** The state of a run, with its outcome once it has ended. */
  run(id) {
    return this.#json('run.read', { run_id: id });
  }

  /** A page of the calls of a run with complete parameters and results. `next` is the `after` of the next page. */
  calls(runId, { after = 0, limit = 50 } = {}) {
    return this.#json('run.calls', { run_id: runId, after, limit });
  }

  /** The runs of a conversation, without their outcomes. */
  runs(conversationId) {
    return this.#items('run.list', { conversation_id: conversationId });
  }

  /** Start a run; `branch` names the message that it follows. @returns {Promise<{run_id: string}>} */
  startRun(conversationId, message) {
    return this.#json('chat.send', { conversation_id: conversationId }, message);
  }

  /** The steps of a run in the order in which they began. */
  steps(runId) {
    return this.#all((after) => this.#json('step.list', { run_id: runId, after }));
  }

  /** A step with its request and its result. */
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

  assistant(id) {
    return this.#json('assistant.read', { assistant_id: id });
  }

  createAssistant(assistant) {
    return this.#json('assistant.create', {}, assistant);
  }

  /** Replace an assistant; refused if another revision than `assistant.revision` is stored. */
  replaceAssistant(id, assistant) {
    return this.#json('assistant.update', { assistant_id: id }, assistant);
  }

  deleteAssistant(id) {
    return this.#json('assistant.delete', { assistant_id: id });
  }

  /** The system prompt that the runs of an assistant would begin with. */
  previewAssistant(assistant) {
    return this.#json('assistant.preview', {}, assistant);
  }

  tools() {
    return this.#items('tool.list');
  }

  /** The schedules, each with its last run. */
  schedules() {
    return this.#items('schedule.list');
  }

  /** When each schedule starts in the next two weeks. */
  comingStarts() {
    return this.#items('schedule.coming');
  }

  /** A schedule with its last runs and their status. */
  schedule(id) {
    return this.#json('schedule.read', { schedule_id: id });
  }

  createSchedule(schedule) {
    return this.#json('schedule.create', {}, schedule);
  }

  replaceSchedule(id, schedule) {
    return this.#json('schedule.update', { schedule_id: id }, schedule);
  }

  deleteSchedule(id) {
    return this.#json('schedule.delete', { schedule_id: id });
  }

  /** Start a schedule now. */
  runSchedule(id) {
    return this.#json('schedule.run', { schedule_id: id });
  }

  /** The servers of the Model Context Protocol; needs the right `admin`, as do the methods below. */
  mcpServers() {
    return this.#items('mcp.list');
  }

  mcpServer(id) {
    return this.#json('mcp.read', { server_id: id });
  }

  createMcpServer(server) {
    return this.#json('mcp.create', {}, server);
  }

  /** Replace the configuration of a server; refused if another revision than `server.revision` is stored. */
  replaceMcpServer(id, server) {
    return this.#json('mcp.update', { server_id: id }, server);
  }

  deleteMcpServer(id) {
    return this.#json('mcp.delete', { server_id: id });
  }

  /** List the tools of a server again. */
  lookAtMcpServer(id) {
    return this.#json('mcp.look', { server_id: id });
  }

  /** Approve the shown tools of a server. @param {string} digest its `changes_digest` */
  approveMcpServer(id, digest) {
    return this.#json('mcp.approve', { server_id: id }, { digest });
  }

  /** Begin a sign-in at a server. @returns {Promise<{url: string}>} where the browser goes */
  beginMcpSignIn(id, options) {
    return this.#json('mcp.sign_in', { server_id: id }, options);
  }

  /** Where an authorization server sends the browser back after a sign-in. */
  mcpCallbackUrl() {
    return this.#url('mcp.callback').href;
  }

  endMcpSignIn(id) {
    return this.#json('mcp.sign_out', { server_id: id });
  }

  /** The servers of models: those of the operator, then those of the tenant. */
  modelServers() {
    return this.#items('model_server.list');
  }

  /** @param {string} name @param {{base_url?: string, api?: string, api_key?: string}} server */
  setModelServer(name, server) {
    return this.#json('model_server.set', { name }, server);
  }

  deleteModelServer(name) {
    return this.#json('model_server.delete', { name });
  }

  /** Request the list of models from a server. @returns {Promise<{problem: string | null, models: string[]}>} */
  testModelServer(name) {
    return this.#json('model_server.test', { name });
  }

  /** Exchange the text of an invitation for its key, once. @returns {Promise<{key: string}>} */
  claimInvitation(text) {
    return this.#json('invitation.claim', {}, { text });
  }

  /** What the user wants of every reply. @returns {Promise<{text: string}>} */
  instructions() {
    return this.#json('instructions.read');
  }

  setInstructions(text) {
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

  revokeKey(id) {
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

  /** All entries, oldest first. @param {'jsonl' | 'csv'} format @returns {Promise<Blob>} */
  auditExport(wanted, format) {
    return this.#blob('audit.export', { ...wanted, format });
  }

  /** A page of the messages that could not be handled, oldest first. @param {number} [after] `next` of the previous page */
  deadLetters(after) {
    return this.#json('dead_letter.list', { limit: 50, after });
  }

  /** A message that could not be handled, with the beginning of its content. */
  deadLetter(id) {
    return this.#json('dead_letter.read', { letter_id: id });
  }

  discardDeadLetter(id) {
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

  cancelOpenRun(tenant, runId, reason) {
    return this.#json('operator.cancel', { tenant, run_id: runId }, { reason });
  }

  replayDeadLetter(id) {
    return this.#json('dead_letter.replay', { letter_id: id });
  }

  usage() {
    return this.#json('usage');
  }

  files(conversationId) {
    return this.#json('file.list', { conversation_id: conversationId });
  }

  /** @returns {Promise<Blob>} */
  file(conversationId, path) {
    return this.#blob('file.read', { conversation_id: conversationId, path });
  }

  /** What changed in a file since its workspace began. */
  diff(conversationId, path) {
    return this.#json('file.diff', { conversation_id: conversationId, path });
  }

  /** All changes of a workspace as a patch. @returns {Promise<Blob>} */
  patch(conversationId) {
    return this.#blob('file.patch', { conversation_id: conversationId });
  }

  /** All files of a workspace as a zip file. @returns {Promise<Blob>} */
  archive(conversationId) {
    return this.#blob('file.archive', { conversation_id: conversationId });
  }

  /** The processes of a conversation that outlive their calls, as a list with `items`. */
  processes(conversationId) {
    return this.#json('process.list', { conversation_id: conversationId });
  }

  /** The last part of the output of a process. */
  processOutput(conversationId, processId) {
    return this.#json('process.read', { conversation_id: conversationId, process_id: processId });
  }

  stopProcess(conversationId, processId) {
    return this.#json('process.stop', { conversation_id: conversationId, process_id: processId }, {});
  }

  upload(conversationId, path, body) {
    return this.#fetch(
      'file.write',
      { conversation_id: conversationId, path },
      body,
      'application/octet-stream',
    );
  }

  deleteFile(conversationId, path) {
    return this.#fetch('file.delete', { conversation_id: conversationId, path });
  }

  /** The complete output of a call whose result was truncated. @returns {Promise<Blob>} */
  output(runId, toolCallId) {
    return this.#blob('output.read', { run_id: runId, tool_call_id: toolCallId });
  }

  #url(operation, parameters = {}) {
    return new URL(addressOf(ROUTES[operation][1], parameters), this.base);
  }

  async #items(operation, parameters) {
    return (await this.#json(operation, parameters)).items;
  }

  /** The items of all pages. @param {(after: number) => Promise<{items: object[], next: number | null}>} read */
  async #all(read) {
    const items = [];
    let after = 0;
    while (after !== null) {
      const page = await read(after);
      items.push(...page.items);
      after = page.next;
    }
    return items;
  }

  async #blob(operation, parameters) {
    return (await this.#fetch(operation, parameters)).blob();
  }

  async #json(operation, parameters, body) {
    const request = body === undefined ? [] : [JSON.stringify(body), 'application/json'];
    const response = await this.#fetch(operation, parameters, ...request);
    return response.status === 204 ? null : response.json();
  }

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

async function errorOf(response) {
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
    return name === 'path'
      ? parameters.path.split('/').map(encodeURIComponent).join('/')
      : encodeURIComponent(parameters[name]);
  });
  const query = Object.entries(parameters).filter(([name, value]) => !named.has(name) && isGiven(value));
  return query.length ? `${path}?${new URLSearchParams(query)}` : path;
}

const isGiven = (value) => value !== undefined && value !== null && value !== '' && value !== false;
