/** A client of the HTTP API: conversations, workflows and files. Paths are relative to the page's URL. */

/** An HTTP response that is not a success, or none (status 0). */
export class ApiError extends Error {
  constructor(status, message, code = null) {
    super(message);
    this.name = 'ApiError';
    this.status = status;
    this.code = code;
  }
}

const encodePath = (path) => path.split('/').map(encodeURIComponent).join('/');

export class Api {
  /**
   * @param {object} options
   * @param {string} options.base the URL that the page was loaded from
   * @param {() => string | null} options.token
   * @param {() => void} options.onUnauthorized
   */
  constructor({ base, token, onUnauthorized }) {
    Object.assign(this, { base, token, onUnauthorized });
  }

  /** The websocket's URL next to this page. */
  socketUrl() {
    const url = new URL('ws', this.base);
    url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
    return url.href;
  }

  /** Where users sign in; null if the gateway knows no provider. */
  async provider() {
    try {
      return await this.#json('GET', 'v1/sign-in');
    } catch (failure) {
      if (failure.status === 404) return null;
      throw failure;
    }
  }

  /** Exchange the code of a provider for a token. */
  signIn(code) {
    return this.#json('POST', 'v1/sign-in', code);
  }

  conversations({ query = '', cursor = null, limit = 50 } = {}) {
    const search = new URLSearchParams({ limit: String(limit) });
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

  deleteConversation(id) {
    return this.#json('DELETE', `context/conversations/${id}`);
  }

  workflowCategories() {
    return this.#json('GET', 'workflows/categories');
  }

  files(conversationId) {
    return this.#json('GET', `context/conversations/${conversationId}/files`);
  }

  /** @returns {Promise<Blob>} */
  async file(conversationId, path) {
    const response = await this.#fetch('GET', `context/conversations/${conversationId}/files/${encodePath(path)}`);
    return response.blob();
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
      response = await fetch(new URL(path, this.base), { method, body, headers, redirect: 'error' });
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
    return new ApiError(response.status, error?.message ?? fallback, error?.code);
  } catch {
    return new ApiError(response.status, fallback);
  }
}
