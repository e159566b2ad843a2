/** The HTTP API: conversations, workflows, assistants and files. Paths are relative to the gateway's URL. */

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

const encodePath = (path) => path.split('/').map(encodeURIComponent).join('/');

export class Api {
  /**
   * @param {object} options
   * @param {string} options.base the URL of the gateway, or of the page, with a slash at its end
   * @param {() => string | null} options.token
   * @param {() => void} [options.onUnauthorized]
   * @param {typeof globalThis.fetch} [options.fetch]
   */
  constructor({ base, token, onUnauthorized = () => {}, fetch = (...request) => globalThis.fetch(...request) }) {
    Object.assign(this, { base, token, onUnauthorized, fetch });
  }

  /** The websocket's URL at this gateway. */
  socketUrl() {
    const url = new URL('ws', this.base);
    url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
    return url.href;
  }

  /** Where users sign in; without an `authorization_endpoint` if the gateway knows no provider. */
  provider() {
    return this.#json('GET', 'v1/sign-in');
  }

  /** Exchange the code of a provider for a token. */
  signIn(code) {
    return this.#json('POST', 'v1/sign-in', code);
  }

  conversations({ query = '', cursor = null, limit = 50, pinned = false, archived = false } = {}) {
    const search = new URLSearchParams({ limit: String(limit) });
    if (pinned) search.set('pinned', 'true');
    if (archived) search.set('archived', 'true');
    if (query) search.set('q', query);
    if (cursor) search.set('cursor', cursor);
    return this.#json('GET', `context/conversations?${search}`);
  }

  conversation(id) {
    return this.#json('GET', `context/conversations/${id}`);
  }

  renameConversation(id, title) {
    return this.#json('PATCH', `context/conversations/${id}`, { title });
  }

  workflow(name) {
    return this.#json('GET', `workflows/${name}`);
  }

  createWorkflow(workflow) {
    return this.#json('POST', 'workflows', workflow);
  }

  replaceWorkflow(name, workflow) {
    return this.#json('PUT', `workflows/${name}`, workflow);
  }

  deleteWorkflow(name) {
    return this.#json('DELETE', `workflows/${name}`);
  }

  /** The workflow and the parameters that a text names. @param {string} text a command or plain language */
  parseWorkflow(text) {
    return this.#json('POST', 'workflows/parse', { text });
  }

  async assistantRevisions(id) {
    return (await this.#json('GET', `context/assistants/${id}/revisions`)).items;
  }

  assistantRevision(id, revision) {
    return this.#json('GET', `context/assistants/${id}/revisions/${revision}`);
  }

  restoreAssistant(id, revision) {
    return this.#json('POST', `context/assistants/${id}/revisions/${revision}/restore`);
  }

  /** Create a conversation with the messages of an exported one. @param {{conversation?: object, events: object[]}} exported */
  importConversation(exported) {
    return this.#json('POST', 'context/conversations/import', exported);
  }

  /** Let a model write the title, unless a person has chosen it. */
  generateTitle(id) {
    return this.#json('POST', `context/conversations/${id}/title`);
  }

  /** Pin or archive a conversation. @param {{pinned?: boolean, archived?: boolean}} marks */
  markConversation(id, marks) {
    return this.#json('PATCH', `context/conversations/${id}`, marks);
  }

  /** Messages that contain a text, newest first. */
  search(text, { cursor = null, limit = 20 } = {}) {
    const search = new URLSearchParams({ q: text, limit: String(limit), ...(cursor ? { cursor } : {}) });
    return this.#json('GET', `context/search?${search}`);
  }

  /** Every stored event of a conversation, as frames. */
  async events(id) {
    const items = [];
    let after = 0;
    while (after !== null) {
      const page = await this.#json('GET', `context/conversations/${id}/events?after_seq=${after}`);
      items.push(...page.items);
      after = page.next;
    }
    return items;
  }

  deleteConversation(id) {
    return this.#json('DELETE', `context/conversations/${id}`);
  }

  workflowCategories() {
    return this.#json('GET', 'workflows/categories');
  }

  async workflows() {
    return (await this.#json('GET', 'workflows')).items;
  }

  /** The tenant's open approval requests. */
  async approvals() {
    return (await this.#json('GET', 'context/approvals')).items;
  }

  /** Take a request out of the user's inbox; it stays open. */
  setAside(approvalId) {
    return this.#json('POST', `context/approvals/${approvalId}/aside`);
  }

  /** The key with which a browser subscribes to notifications. */
  pushOffer() {
    return this.#json('GET', 'context/push');
  }

  /** Register a device for approval requests, or renew its registration. */
  registerDevice(subscription) {
    return this.#json('PUT', 'context/push/devices', subscription);
  }

  removeDevice(id) {
    return this.#json('DELETE', `context/push/devices/${id}`);
  }

  /** The rules of the tenant that come before those of its assistants. */
  policy() {
    return this.#json('GET', 'context/policy');
  }

  /** Replace the policy; refused if another revision than `policy.revision` is stored. */
  replacePolicy(policy) {
    return this.#json('PUT', 'context/policy', policy);
  }

  /** The remembered decisions, which apply to further calls. */
  async remembered() {
    return (await this.#json('GET', 'context/remembered')).items;
  }

  withdrawRemembered(approvalId) {
    return this.#json('DELETE', `context/remembered/${approvalId}`);
  }

  /** The values that workflows wait for. */
  async inputs() {
    return (await this.#json('GET', 'context/inputs')).items;
  }

  /** The state of a run, with its outcome once it has ended. */
  run(id) {
    return this.#json('GET', `context/runs/${id}`);
  }

  /** A page of the calls of a run with complete parameters and results. `next` is the `after` of the next page. */
  calls(runId, { after = 0, limit = 50 } = {}) {
    return this.#json('GET', `context/runs/${runId}/tool-calls?after=${after}&limit=${limit}`);
  }

  /** The runs of a conversation, without their outcomes. */
  async runs(conversationId) {
    return (await this.#json('GET', `context/conversations/${conversationId}/runs`)).items;
  }

  /** Start a run; `branch` names the message that it follows. @returns {Promise<{run_id: string}>} */
  startRun(conversationId, message) {
    return this.#json('POST', `context/conversations/${conversationId}/runs`, message);
  }

  /** The steps of a run in the order in which they began. */
  async steps(runId) {
    const items = [];
    let after = 0;
    while (after !== null) {
      const page = await this.#json('GET', `context/runs/${runId}/steps?after=${after}`);
      items.push(...page.items);
      after = page.next;
    }
    return items;
  }

  /** A step with its request and its result. */
  step(runId, stepId) {
    return this.#json('GET', `context/runs/${runId}/steps/${encodeURIComponent(stepId)}`);
  }

  async assistants() {
    return (await this.#json('GET', 'context/assistants')).items;
  }

  /** The models that runs can use, with price and context. */
  async models() {
    return (await this.#json('GET', 'context/models')).items;
  }

  assistant(id) {
    return this.#json('GET', `context/assistants/${id}`);
  }

  createAssistant(assistant) {
    return this.#json('POST', 'context/assistants', assistant);
  }

  /** Replace an assistant; refused if another revision than `assistant.revision` is stored. */
  replaceAssistant(id, assistant) {
    return this.#json('PUT', `context/assistants/${id}`, assistant);
  }

  deleteAssistant(id) {
    return this.#json('DELETE', `context/assistants/${id}`);
  }

  /** The system prompt that the runs of an assistant would begin with. */
  previewAssistant(assistant) {
    return this.#json('POST', 'context/assistants/preview', assistant);
  }

  async tools() {
    return (await this.#json('GET', 'context/tools')).items;
  }

  /** The schedules, each with its last run. */
  async schedules() {
    return (await this.#json('GET', 'context/schedules')).items;
  }

  /** When each schedule starts in the next two weeks. */
  async comingStarts() {
    return (await this.#json('GET', 'context/schedules/coming')).items;
  }

  /** A schedule with its last runs and their status. */
  schedule(id) {
    return this.#json('GET', `context/schedules/${id}`);
  }

  createSchedule(schedule) {
    return this.#json('POST', 'context/schedules', schedule);
  }

  replaceSchedule(id, schedule) {
    return this.#json('PUT', `context/schedules/${id}`, schedule);
  }

  deleteSchedule(id) {
    return this.#json('DELETE', `context/schedules/${id}`);
  }

  /** Start a schedule now. */
  runSchedule(id) {
    return this.#json('POST', `context/schedules/${id}/run`);
  }

  /** The servers of the Model Context Protocol; needs the right `admin`, as do the methods below. */
  async mcpServers() {
    return (await this.#json('GET', 'context/mcp-servers')).items;
  }

  mcpServer(id) {
    return this.#json('GET', `context/mcp-servers/${id}`);
  }

  createMcpServer(server) {
    return this.#json('POST', 'context/mcp-servers', server);
  }

  /** Replace the configuration of a server; refused if another revision than `server.revision` is stored. */
  replaceMcpServer(id, server) {
    return this.#json('PUT', `context/mcp-servers/${id}`, server);
  }

  deleteMcpServer(id) {
    return this.#json('DELETE', `context/mcp-servers/${id}`);
  }

  /** List the tools of a server again. */
  lookAtMcpServer(id) {
    return this.#json('POST', `context/mcp-servers/${id}/look`);
  }

  /** Approve the shown tools of a server. @param {string} digest its `changes_digest` */
  approveMcpServer(id, digest) {
    return this.#json('POST', `context/mcp-servers/${id}/approve`, { digest });
  }

  /** Begin a sign-in at a server. @returns {Promise<{url: string}>} where the browser goes */
  beginMcpSignIn(id, options) {
    return this.#json('POST', `context/mcp-servers/${id}/sign-in`, options);
  }

  endMcpSignIn(id) {
    return this.#json('DELETE', `context/mcp-servers/${id}/sign-in`);
  }

  /** The API keys that were created here. */
  async keys() {
    return (await this.#json('GET', 'context/keys')).items;
  }

  /** Create a key; its text is in this response only. @param {{user: string, rights: string[]}} key */
  createKey(key) {
    return this.#json('POST', 'context/keys', key);
  }

  revokeKey(id) {
    return this.#json('DELETE', `context/keys/${id}`);
  }

  /** The identity providers of the gateway, with the roles that people of the tenant need. */
  async identityProviders() {
    return (await this.#json('GET', 'context/identity-providers')).items;
  }

  /** The state of queues and streams; needs the right `operator`, as do the methods below. */
  operatorOverview() {
    return this.#json('GET', 'operator/overview');
  }

  /** The state of each process, and of the NATS servers. */
  services() {
    return this.#json('GET', 'operator/services');
  }

  /** A page of the tenants. @param {string} [after] The last tenant of the previous page. */
  tenants(after) {
    return this.#json('GET', `operator/tenants${after ? `?after=${encodeURIComponent(after)}` : ''}`);
  }

  /**
   * A page of the audit trail, newest first.
   *
   * @param {{action?: string, actor?: string, tenant?: string}} wanted an empty value selects all
   * @param {number} [after] `next` of the previous page
   */
  audit(wanted, after) {
    return this.#json('GET', `v1/audit${queryOf({ ...wanted, limit: 50, after })}`);
  }

  /** All entries, oldest first. @param {'jsonl' | 'csv'} format @returns {Promise<Blob>} */
  async auditExport(wanted, format) {
    return (await this.#fetch('GET', `v1/audit/export${queryOf({ ...wanted, format })}`)).blob();
  }

  /** A page of the messages that could not be handled, oldest first. @param {number} [after] `next` of the previous page */
  deadLetters(after) {
    return this.#json('GET', `operator/dead-letters?limit=50${after ? `&after=${after}` : ''}`);
  }

  /** A message that could not be handled, with the beginning of its content. */
  deadLetter(id) {
    return this.#json('GET', `operator/dead-letters/${id}`);
  }

  discardDeadLetter(id) {
    return this.#json('DELETE', `operator/dead-letters/${id}`);
  }

  /**
   * A page of the runs that have not ended, oldest first.
   *
   * @param {'queued' | 'queued_workflow' | 'awaiting_approval' | 'awaiting_input'} state
   * @param {{after?: number, tenant?: string}} [options] `after` is `next` of the previous page; `tenant` selects one
   */
  openRuns(state, { after, tenant } = {}) {
    return this.#json('GET', `operator/runs${queryOf({ state, after, tenant })}`);
  }

  cancelOpenRun(tenant, runId, reason) {
    return this.#json('POST', `operator/runs/${tenant}/${runId}/cancel`, { reason });
  }

  replayDeadLetter(id) {
    return this.#json('POST', `operator/dead-letters/${id}/replay`);
  }

  usage() {
    return this.#json('GET', 'context/usage');
  }

  files(conversationId) {
    return this.#json('GET', `context/conversations/${conversationId}/files`);
  }

  /** @returns {Promise<Blob>} */
  async file(conversationId, path) {
    const response = await this.#fetch('GET', `context/conversations/${conversationId}/files/${encodePath(path)}`);
    return response.blob();
  }

  /** All files of a workspace as a zip file. @returns {Promise<Blob>} */
  async archive(conversationId) {
    return (await this.#fetch('GET', `context/conversations/${conversationId}/archive`)).blob();
  }

  upload(conversationId, path, body) {
    return this.#fetch('PUT', `context/conversations/${conversationId}/files/${encodePath(path)}`, body, {
      'content-type': 'application/octet-stream',
    });
  }

  deleteFile(conversationId, path) {
    return this.#fetch('DELETE', `context/conversations/${conversationId}/files/${encodePath(path)}`);
  }

  /** The complete output of a call whose result was truncated. @returns {Promise<Blob>} */
  async output(runId, toolCallId) {
    const response = await this.#fetch('GET', `context/runs/${runId}/tool-calls/${toolCallId}/output`);
    return response.blob();
  }

  async #json(method, path, body) {
    const headers = body === undefined ? {} : { 'content-type': 'application/json' };
    const response = await this.#fetch(method, path, body === undefined ? undefined : JSON.stringify(body), headers);
    return response.status === 204 ? null : response.json();
  }

  async #fetch(method, path, body, headers = {}) {
    const token = this.token();
    if (token) headers = { ...headers, authorization: `Bearer ${token}` };
    let response;
    try {
      response = await this.fetch(new URL(path, this.base), { method, body, headers, redirect: 'error' });
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

/** The query string of the parameters that have a value. */
function queryOf(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value);
  return `?${new URLSearchParams(given)}`;
}
