/**
 * The views of the page besides the conversation, and the address of the page: `#/` begins a conversation, `#/c/{id}`
 * shows one, `#/c/{id}/{message}` shows it at a message, `#/{view}/{path}` opens a view.
 *
 * A view is a module of `views/` that is loaded when it is first opened. Views of one group are tabs of each other.
 */

import { withTexts } from './strings.mjs';

const CONVERSATION = /^#\/c\/([\w-]{1,64})(?:\/([\w.-]{1,128}))?$/;
const VIEW = /^#\/([a-z]+)(?:\/(.*))?$/;

/**
 * @typedef {object} View
 * @property {() => Promise<{default: Function}>} load the module; its default is the component, which gets `path`
 * @property {import('./strings.mjs').Key} title key of the title
 * @property {import('./strings.mjs').Key} [tab] key of the title on its tab, if it is another one
 * @property {'approvals' | 'library' | 'manage'} [group] the views that are its tabs
 * @property {string} [icon] of the command that opens it; without one, only links lead to the view
 * @property {string} [right] the right that a user needs for it
 */

/** @type {Record<string, View>} */
export const VIEWS = {
  approvals: {
    load: () => withTexts(import('./views/approvals.mjs'), 'approvals', 'forms', 'workflows'),
    title: 'inbox.title',
    tab: 'inbox.tab',
    group: 'approvals',
    icon: 'shield',
  },
  decided: {
    load: () => withTexts(import('./views/decided.mjs'), 'approvals'),
    title: 'decided.title',
    tab: 'decided.tab',
    group: 'approvals',
    icon: 'check',
  },
  assistants: {
    load: () => withTexts(import('./views/assistants.mjs'), 'assistants', 'approvals'),
    title: 'assistant.list',
    group: 'library',
    icon: 'assistant',
  },
  workflows: {
    load: () => withTexts(import('./views/workflows.mjs'), 'workflows', 'forms'),
    title: 'workflow.title',
    group: 'library',
    icon: 'workflow',
    right: 'chat',
  },
  schedules: {
    load: () => withTexts(import('./views/schedules.mjs'), 'schedules', 'workflows', 'forms'),
    title: 'schedule.title',
    group: 'library',
    icon: 'clock',
    right: 'chat',
  },
  rules: {
    load: () => withTexts(import('./views/rules.mjs'), 'approvals', 'assistants'),
    title: 'rules.title',
    group: 'manage',
    icon: 'rules',
    right: 'approve',
  },
  people: {
    load: () => withTexts(import('./views/people.mjs'), 'people'),
    title: 'people.title',
    group: 'manage',
    icon: 'people',
    right: 'admin',
  },
  mcp: {
    load: () => withTexts(import('./views/mcp.mjs'), 'mcp'),
    title: 'mcp.title',
    group: 'manage',
    icon: 'plug',
    right: 'admin',
  },
  models: {
    load: () => withTexts(import('./views/models.mjs'), 'models'),
    title: 'servers.title',
    group: 'manage',
    icon: 'model',
    right: 'admin',
  },
  audit: {
    load: () => withTexts(import('./views/audit.mjs'), 'audit'),
    title: 'audit.title',
    group: 'manage',
    icon: 'log',
    right: 'admin',
  },
  operator: {
    load: () => withTexts(import('./views/operator.mjs'), 'operator'),
    title: 'operator.title',
    group: 'manage',
    icon: 'gauge',
    right: 'operator',
  },
  settings: { load: () => import('./views/settings.mjs'), title: 'settings.title', icon: 'settings' },
  runs: { load: () => withTexts(import('./views/runs.mjs'), 'runs', 'approvals'), title: 'run.title' },
  read: { load: () => import('./views/read.mjs'), title: 'read.title' },
};

/** The names of the views with a command that a user may open. @param {string[] | undefined} rights undefined for all */
export function viewsFor(rights) {
  /** @param {View} view */
  const isOpen = ({ icon, right }) => icon && (!right || !rights || rights.includes(right));
  return Object.keys(VIEWS).filter((name) => isOpen(VIEWS[name]));
}

/** Those of them that are tabs of one page. @param {NonNullable<View['group']>} group @param {string[] | undefined} rights */
export function tabsOf(group, rights) {
  return viewsFor(rights).filter((name) => VIEWS[name].group === group);
}

/**
 * @param {string} hash
 * @param {Record<string, unknown>} views
 * @returns {{view: string, conversationId: string | null, path: string[]}} the view is `chat` for conversations and
 *   for unknown addresses; `path` contains the decoded segments after the view's name, or the id of a message
 */
export function routeOf(hash, views) {
  const [, conversationId = null, messageId] = CONVERSATION.exec(hash) ?? [];
  const [, name, rest = ''] = VIEW.exec(hash) ?? [];
  if (conversationId || !Object.hasOwn(views, name ?? ''))
    return { view: 'chat', conversationId, path: messageId ? [messageId] : [] };
  return { view: name, conversationId: null, path: rest.split('/').filter(Boolean).map(decoded) };
}

/** The address of a view. @param {string} view @param {...string} path */
export function addressOf(view, ...path) {
  return `#/${[view, ...path.map(encodeURIComponent)].join('/')}`;
}

function decoded(/** @type {string} */ segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}
