/** Outlines on a 24-unit grid, drawn with a stroke. Each has one meaning, and each meaning one outline. */

/** @type {Record<string, string>} */
export const ICONS = {
  gauge: 'M4.5 18a8.5 8.5 0 1 1 15 0M12 14l4-5M12 15.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3z',
  people:
    'M9 11.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM2.5 19.5c.5-3.5 3-5 6.5-5s6 1.5 6.5 5M16 4.8a3.5 3.5 0 0 1 0 6.4M18 14.9c2 .6 3.2 2.1 3.5 4.6',
  settings: 'M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5',
  bell: 'M12 4a5.5 5.5 0 0 1 5.5 5.5c0 4.5 2 6 2 6h-15s2-1.5 2-6A5.5 5.5 0 0 1 12 4zM10 18.5a2 2 0 0 0 4 0',
  lock: 'M6 11h12v9H6zM8.5 11V8a3.5 3.5 0 0 1 7 0v3',
  clock: 'M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17zM12 7v5l3.5 2',
  plus: 'M12 5v14M5 12h14',
  close: 'M6 6l12 12M18 6L6 18',
  check: 'M5 12.5l4.5 4.5L19 7.5',
  copy: 'M9 9h10v11H9zM5 15V4h10',
  more: 'M12 6a.5.5 0 1 0 0-1 .5.5 0 0 0 0 1zM12 12.5a.5.5 0 1 0 0-1 .5.5 0 0 0 0 1zM12 19a.5.5 0 1 0 0-1 .5.5 0 0 0 0 1z',
  menu: 'M4 7h16M4 12h16M4 17h16',
  search: 'M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4',
  folder: 'M3.5 18.5v-13h6l2 2.5h9v10.5z',
  file: 'M6 3.5h8l4 4v13H6zM14 3.5v4h4',
  workflow: 'M4 4h6v6H4zM14 14h6v6h-6zM10 7h4.5A2.5 2.5 0 0 1 17 9.5V14',
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'M7.5 7.5h9v9h-9z',
  details: 'M4 6h10M4 12h16M4 18h7',
  chevron: 'M9 6l6 6-6 6',
  expand: 'M8 10l4-4 4 4M8 14l4 4 4-4',
  down: 'M12 5v14M6 13l6 6 6-6',
  terminal: 'M4 5h16v14H4zM7.5 9.5l3 2.5-3 2.5M12.5 15H16',
  globe: 'M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17zM3.5 12h17M12 3.5c5 5 5 12 0 17c-5-5-5-12 0-17',
  pencil: 'M5 19l1-4L16.5 4.5l3 3L9 18zM14.5 6.5l3 3',
  tool: 'M14.5 6.5a4 4 0 0 1 5-1.2L16.7 8l-.2 2 2 .2 2.3-2.4a4 4 0 0 1-5.5 4.7L8 20a2 2 0 0 1-3-3l7.3-7.2a4 4 0 0 1 2.2-3.3z',
  plug: 'M9 3.5V8M15 3.5V8M6.5 8h11v3.5a5.5 5.5 0 0 1-11 0zM12 17v3.5',
  shield: 'M12 3.5l7 2.5v5.5c0 4.5-3 7.5-7 9c-4-1.5-7-4.5-7-9V6z',
  trash: 'M5 7h14M10 7V4.5h4V7M7 7l1 13h8l1-13M10.5 11v5.5M13.5 11v5.5',
  download: 'M12 4v11M7 10.5l5 5 5-5M5 20h14',
  upload: 'M12 16V5M7 9.5l5-5 5 5M5 20h14',
  refresh: 'M19.5 12a7.5 7.5 0 1 1-2.2-5.3L19.5 9M19.5 4.5V9H15',
  info: 'M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17zM12 11v5M12 8v.01',
  warning: 'M12 4.5l8.5 15h-17zM12 10v4.5M12 17v.01',
  tag: 'M4 4.5h7l9 9-6.5 6.5-9-9zM8 8.5h.01',
  pin: 'M9 4h6l-1 6 3 3H7l3-3zM12 13v7',
  archive: 'M4 5h16v4H4zM5.5 9v10.5h13V9M10 13h4',
  compact: 'M12 3.5v6M9 7l3 3 3-3M12 20.5v-6M9 17l3-3 3 3M4 12h16',
  up: 'M6 15l6-6 6 6',
  attach: 'M8 12.5l6-6a3 3 0 0 1 4.5 4.5l-8 8a5 5 0 0 1-7-7l8-8',
  branch: 'M7 4v16M7 4a1 1 0 1 0 0-.01M7 9c0 4 10 1 10 7v4',
  brain: 'M9 18h6M10 21h4M8.5 14.5a5.5 5.5 0 1 1 7 0c-.7.6-1 1.2-1 2h-5c0-.8-.3-1.4-1-2z',
  back: 'M19 12H5M11 6l-6 6 6 6',
  previous: 'M15 6l-6 6 6 6',
  assistant: 'M5.5 9h13v9.5h-13zM12 9V5M9.5 13v1.5M14.5 13v1.5M3 12.5v2M21 12.5v2',
  model:
    'M6.5 6.5h11v11h-11zM10 10h4v4h-4zM9.5 3.5v3M14.5 3.5v3M9.5 17.5v3M14.5 17.5v3M3.5 9.5h3M3.5 14.5h3M17.5 9.5h3M17.5 14.5h3',
  rules: 'M4 7l1.5 1.5L8.5 5.5M4 16l1.5 1.5 3-3M12 7.5h8M12 16.5h8',
  log: 'M6 3.5h12v17H6zM9 8h6M9 12h6M9 16h4',
  wait: 'M7 4h10M7 20h10M8 4c0 4 8 4.5 8 8s-8 4-8 8M16 4c0 4-8 4.5-8 8s8 4 8 8',
  question:
    'M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17zM9.5 9.5a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.7M12 16.5v.01',
  keyboard: 'M3 7h18v10H3zM6.5 10.5h.01M10 10.5h.01M14 10.5h.01M17.5 10.5h.01M8 14h8',
  manage: 'M4 4h6.5v6.5H4zM13.5 4H20v6.5h-6.5zM4 13.5h6.5V20H4zM13.5 13.5H20V20h-6.5z',
  language: 'M4 6h9M8.5 4v2M6 6c.5 3 3 5.5 6 6.5M11 6c-.5 3-3 5.5-6.5 6.5M12.5 20l4-9 4 9M14 17h5',
  theme: 'M12 20.5a8.5 8.5 0 1 0 0-17 8.5 8.5 0 0 0 0 17zM12 3.5v17M12 8l6-2M12 12h8.5M12 16l6 2',
  repository: 'M6 18V5.5a2 2 0 0 1 2-2h10.5v17H8A2 2 0 0 1 6 18a2 2 0 0 1 2-2h10.5',
  repeat: 'M17 3.5l3 3-3 3M4 11.5v-1a4 4 0 0 1 4-4h12M7 20.5l-3-3 3-3M20 12.5v1a4 4 0 0 1-4 4H4',
  key: 'M8 19a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM11.2 11.3L19.5 3M16 6.5l2.5 2.5',
  exit: 'M10 4.5H5v15h5M15 8l4 4-4 4M19 12H10',
  'folder-plus': 'M3.5 18.5v-13h6l2 2.5h9v10.5zM12 10.5v5.5M9.25 13.25h5.5',
  code: 'M8.5 7l-5 5 5 5M15.5 7l5 5-5 5',
  book: 'M12 6.5C10 5.2 7.5 5 4.5 5v13c3 0 5.5.2 7.5 1.5c2-1.3 4.5-1.5 7.5-1.5V5c-3 0-5.5.2-7.5 1.5zM12 6.5v13',
  message: 'M4 5h16v11h-8.5l-4 3.5V16H4z',
};

/** @param {string} name @returns {string} the path's data */
export function icon(name) {
  return ICONS[name] ?? ICONS.tool;
}

/** @type {Record<string, string>} */
const TOOL_ICONS = {
  bash: 'terminal',
  read_file: 'file',
  write_file: 'pencil',
  edit_file: 'pencil',
  web_fetch: 'globe',
  web_search: 'search',
};

/**
 * The icon of a category of workflows. Categories of tenants may name no icon, or an unknown one.
 *
 * @param {{icon: string}} workflow
 */
export function categoryIcon({ icon: name }) {
  return ICONS[name] ? name : 'workflow';
}

/** The icon of a tool. @param {string} tool */
export function toolIcon(tool) {
  return TOOL_ICONS[tool] ?? 'tool';
}
