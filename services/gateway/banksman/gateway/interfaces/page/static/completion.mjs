/** Completion in the message box: workflows after a leading `/`, files of the workspace after `@`. Pure. */

const COMMAND = /^\/([\w-]*)$/;
const FILE = /(?:^|\s)@([^\s@]*)$/;
const MAX_SHOWN = 8;

/**
 * The word to complete at the caret.
 *
 * @param {string} text
 * @param {number} caret
 * @returns {{kind: 'workflow' | 'file', query: string, from: number} | null} `from` is the index of the word
 */
export function wantedAt(text, caret) {
  const before = text.slice(0, caret);
  const command = COMMAND.exec(before);
  if (command) return { kind: 'workflow', query: command[1], from: 0 };
  const file = FILE.exec(before);
  return file && { kind: 'file', query: file[1], from: caret - file[1].length - 1 };
}

/**
 * The matching options; options that begin with the query come first.
 *
 * @template {{name: string, text: string}} T
 * @param {T[]} options
 * @param {string} query
 */
export function fitting(options, query) {
  const wanted = query.toLowerCase();
  const rank = (/** @type {{name: string}} */ { name }) => (name.toLowerCase().startsWith(wanted) ? 0 : 1);
  const found = options.filter(({ name, text }) => `${name} ${text}`.toLowerCase().includes(wanted));
  return found.sort((one, other) => rank(one) - rank(other)).slice(0, MAX_SHOWN);
}

/**
 * The text with the chosen option in place of the word at the caret.
 *
 * @param {string} text
 * @param {number} caret
 * @param {{kind: string | null, from: number}} wanted
 * @param {string} name
 */
export function completed(text, caret, { kind, from }, name) {
  const word = `${kind === 'workflow' ? '/' : '@'}${name} `;
  return { text: text.slice(0, from) + word + text.slice(caret).trimStart(), caret: from + word.length };
}

/** The files that a message names by `@path`. @param {string} text @param {string[]} paths of the workspace */
export function filesIn(text, paths) {
  const known = new Set(paths);
  const named = [...text.matchAll(/(?:^|\s)@([^\s@]+)/g)].map((match) =>
    known.has(match[1]) ? match[1] : match[1].replace(/[.,;:!?)]+$/, ''),
  );
  return [...new Set(named)].filter((path) => known.has(path));
}
