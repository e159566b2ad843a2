/**
 * The views of the page besides the conversation, and the address of the page: `#/` begins a conversation, `#/c/{id}`
 * shows one, `#/{view}/{path}` opens a view.
 *
 * A view is a module of `views/` that is loaded when it is first opened.
 */

import { withTexts } from './strings.mjs';

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
  approvals: {
    load: () => withTexts(import('./views/approvals.mjs'), 'approvals', 'forms', 'workflows'),
    title: 'inbox.title',
    icon: 'shield',
  },
  rules: {
    load: () => withTexts(import('./views/rules.mjs'), 'approvals', 'assistants'),
    title: 'rules.title',
    icon: 'check',
    right: 'approve',
  },
  assistants: {
    load: () => withTexts(import('./views/assistants.mjs'), 'assistants', 'approvals'),
    title: 'assistant.list',
    icon: 'brain',
  },
  read: { load: () => import('./views/read.mjs'), title: 'read.title' },
  workflows: {
    load: () => withTexts(import('./views/workflows.mjs'), 'workflows', 'forms'),
    title: 'workflow.title',
    icon: 'workflow',
    right: 'chat',
  },
  schedules: {
    load: () => withTexts(import('./views/schedules.mjs'), 'schedules', 'workflows', 'forms'),
    title: 'schedule.title',
    icon: 'clock',
    right: 'chat',
  },
  runs: { load: () => withTexts(import('./views/runs.mjs'), 'runs', 'approvals'), title: 'run.title' },
  mcp: {
    load: () => withTexts(import('./views/mcp.mjs'), 'mcp'),
    title: 'mcp.title',
    icon: 'plug',
    right: 'admin',
  },
  people: {
    load: () => withTexts(import('./views/people.mjs'), 'people'),
    title: 'people.title',
    icon: 'people',
    right: 'admin',
  },
  audit: {
    load: () => withTexts(import('./views/audit.mjs'), 'audit'),
    title: 'audit.title',
    icon: 'details',
    right: 'admin',
  },
  operator: {
    load: () => withTexts(import('./views/operator.mjs'), 'operator'),
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
