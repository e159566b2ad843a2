/** The files of a workspace as a tree, and what changed in them since the conversation began. Pure. */

/**
 * @typedef {{path: string, change: 'created' | 'modified' | 'deleted', since: string, before: string | null | undefined}} Change
 *   of a file: `since` is the first run that changed it; `before` is null for a file that did not exist, and undefined if
 *   its first content is not in the log
 * @typedef {Change['change']} Kind
 */

/** The root of the folders of some files; folders and files sorted by name. @param {WorkspaceFile[]} items */
export function treeOf(items) {
  /** @type {Folder} */
  const root = { name: '', path: '', folders: [], files: [] };
  /** @type {Map<string, Folder>} */
  const folders = new Map([['', root]]);
  for (const item of items) folderOf(item.path.split('/').slice(0, -1), folders).files.push(item);
  for (const folder of folders.values()) {
    folder.folders.sort((a, b) => a.name.localeCompare(b.name));
    folder.files.sort((a, b) => a.path.localeCompare(b.path));
  }
  return root;
}

function folderOf(/** @type {string[]} */ names, /** @type {Map<string, Folder>} */ folders) {
  const path = names.join('/');
  const known = folders.get(path);
  if (known) return known;
  /** @type {Folder} */
  const made = { name: names.at(-1) ?? '', path, folders: [], files: [] };
  folders.set(path, made);
  folderOf(names.slice(0, -1), folders).folders.push(made);
  return made;
}

/**
 * The total changes of files by the calls of a conversation; a file that was created and deleted is omitted.
 *
 * @param {{runs: Run[]}} conversation
 * @returns {Change[]}
 */
export function changesOf({ runs }) {
  const entries = runs.flatMap((run) => run.entries);
  /** @type {Map<string, {change: Kind | null, since: string}>} */
  const found = new Map();
  for (const { run, path, change } of runs.flatMap(pathsOf)) {
    const known = found.get(path);
    found.set(path, { change: joined(known?.change, change), since: known?.since ?? run.id });
  }
  return [...found]
    .flatMap(([path, { change, since }]) => (change === null ? [] : [{ path, change, since }]))
    .map(({ path, change, since }) => ({
      path,
      change,
      since,
      before: change === 'created' ? null : firstContent(entries, path),
    }))
    .sort((a, b) => a.path.localeCompare(b.path));
}

const pathsOf = (/** @type {Run} */ run) =>
  run.entries
    .filter((entry) => entry.kind === 'changed')
    .flatMap((entry) =>
      entry.paths.map(({ path, change }) => ({ run, path, change: /** @type {Kind} */ (change) })),
    );

/** @param {Kind | null | undefined} earlier @param {Kind} change @returns {Kind | null} */
function joined(earlier, change) {
  if (earlier === 'created') return change === 'deleted' ? null : 'created';
  if (earlier === 'deleted' || earlier === 'modified') return change === 'deleted' ? 'deleted' : 'modified';
  return earlier === null ? (change === 'deleted' ? null : 'created') : change;
}

/**
 * The content of a file before its first approved change, as in the approval request.
 *
 * @param {Entry[]} entries
 * @param {string} path
 */
function firstContent(entries, path) {
  const items = entries.filter((entry) => entry.kind === 'approval').flatMap((entry) => entry.items);
  const first = items.find((item) => item.preview?.path === path && typeof item.preview.old === 'string');
  return first?.preview.old ?? undefined;
}

/** The commands of a conversation with their output, oldest first. @param {{runs: Run[]}} options */
export function commandsOf({ runs }) {
  return runs.flatMap((run) =>
    run.entries
      .filter((entry) => entry.kind === 'call')
      .filter((call) => call.name === 'bash')
      .map((call) => ({ run, call, output: outputOf(call) })),
  );
}

function outputOf(/** @type {Call} */ { result, output }) {
  if (!result) return output;
  const {
    stdout = '',
    stderr = '',
    error = '',
  } = /** @type {Json} */ (
    typeof result.content === 'string' ? { stdout: result.content } : (result.content ?? {})
  );
  return [stdout, stderr, error].filter(Boolean).join('\n');
}
