/** The views of the page besides the conversation, by the first segment of their address. */

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
  workflows: { load: () => import('./views/workflows.mjs'), title: 'workflow.title', icon: 'workflow', right: 'chat' },
  schedules: { load: () => import('./views/schedules.mjs'), title: 'schedule.title', icon: 'clock', right: 'chat' },
  runs: { load: () => import('./views/runs.mjs'), title: 'run.title' },
  mcp: { load: () => import('./views/mcp.mjs'), title: 'mcp.title', icon: 'plug', right: 'admin' },
  people: { load: () => import('./views/people.mjs'), title: 'people.title', icon: 'people', right: 'admin' },
  audit: { load: () => import('./views/audit.mjs'), title: 'audit.title', icon: 'details', right: 'admin' },
  operator: { load: () => import('./views/operator.mjs'), title: 'operator.title', icon: 'gauge', right: 'operator' },
  settings: { load: () => import('./views/settings.mjs'), title: 'settings.title', icon: 'settings' },
};
