/**
 * The address of the page: `#/` begins a conversation, `#/c/{id}` shows one, `#/{view}/{path}` opens a view.
 *
 * A view is a module of `views/` that is loaded when it is first opened.
 */

const CONVERSATION = /^#\/c\/([\w-]{1,64})$/;
const VIEW = /^#\/([a-z]+)(?:\/(.*))?$/;

/**
 * @param {string} hash
 * @param {Record<string, unknown>} views
 * @returns {{view: string, conversationId: string | null, path: string[]}} the view is `chat` for conversations and
 *   for unknown addresses; `path` contains the decoded segments after the view's name
 */
export function routeOf(hash, views) {
  const conversationId = CONVERSATION.exec(hash)?.[1] ?? null;
  const [, name, rest = ''] = VIEW.exec(hash) ?? [];
  if (conversationId || !Object.hasOwn(views, name ?? '')) return { view: 'chat', conversationId, path: [] };
  return { view: name, conversationId: null, path: rest.split('/').filter(Boolean).map(decoded) };
}

/** The address of a view. @param {string} view @param {...string} path */
export function addressOf(view, ...path) {
  return `#/${[view, ...path.map(encodeURIComponent)].join('/')}`;
}

function decoded(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}
