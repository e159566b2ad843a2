/**
 * The views of the page besides the conversation, and the address of the page: `#/` begins a conversation, `#/c/{id}`
 * shows one, `#/{view}/{path}` opens a view.
 *
 * A view is a module of `views/` that is loaded when it is first opened.
 */

const CONVERSATION = /^#\/c\/([\w-]{1,64})$/;
const VIEW = /^#\/([a-z]+)(?:\/(.*))?$/;

/**
 * @typedef {object} View
 * @property {() => Promise<{default: Function}>} load the module; its default is the component, which gets `path`
 * @property {string} title key of the title
 * @property {string} [icon] shown in the sidebar with the title; without it, only links lead to the view
 * @property {string} [right] the right that a user needs for it
 */

/** @type {Record<string, View>} */
export const VIEWS = {
  approvals: { load: () => import('./views/approvals.mjs'), title: 'inbox.title', icon: 'shield' },
  rules: { load: () => import('./views/rules.mjs'), title: 'rules.title', icon: 'check', right: 'approve' },
  assistants: { load: () => import('./views/assistants.mjs'), title: 'assistant.list', icon: 'brain' },
  read: { load: () => import('./views/read.mjs'), title: 'read.title' },
  workflows: {
    load: () => import('./views/workflows.mjs'),
    title: 'workflow.title',
    icon: 'workflow',
    right: 'chat',
  },
  schedules: {
    load: () => import('./views/schedules.mjs'),
    title: 'schedule.title',
    icon: 'clock',
    right: 'chat',
  },
  runs: { load: () => import('./views/runs.mjs'), title: 'run.title' },
  mcp: { load: () => import('./views/mcp.mjs'), title: 'mcp.title', icon: 'plug', right: 'admin' },
  people: { load: () => import('./views/people.mjs'), title: 'people.title', icon: 'people', right: 'admin' },
  audit: { load: () => import('./views/audit.mjs'), title: 'audit.title', icon: 'details', right: 'admin' },
  operator: {
    load: () => import('./views/operator.mjs'),
    title: 'operator.title',
    icon: 'gauge',
    right: 'operator',
  },
  settings: { load: () => import('./views/settings.mjs'), title: 'settings.title', icon: 'settings' },
};

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
