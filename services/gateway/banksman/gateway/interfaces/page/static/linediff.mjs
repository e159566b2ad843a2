/** The difference of two texts as rows. */

import { diffLines } from 'diff/line';

import { t } from './strings.mjs';

const MAX_INPUT_CHARACTERS = 200_000;
const MAX_DIFF_MS = 200;
const CONTEXT_LINES = 3;

/** @typedef {{rows: Row[], added: number, removed: number}} Rows @typedef {Row['kind']} Kind */

/**
 * Compare two texts by line.
 *
 * @param {string | null} before `null` when the file is new
 * @param {string} after
 * @returns {Rows}
 *   a long run of unchanged lines becomes one `skipped` row; `added` and `removed` count lines
 */
export function lineRows(before, after) {
  const rows = compared(before ?? '', after) ?? replaced(before ?? '', after);
  return { ...counted(rows), rows: folded(rows) };
}

/** @type {Record<string, Kind>} */
const PATCH_KINDS = { '+': 'added', '-': 'removed', ' ': 'same', '@': 'skipped' };

/**
 * The rows of a file's patch, which the platform has computed.
 *
 * @param {string} patch
 * @returns {Rows}
 */
export function patchRows(patch) {
  const lines = linesOf(patch);
  const first = lines.findIndex((line) => line.startsWith('@@'));
  const rows = (first < 0 ? [] : lines.slice(first))
    .filter((line) => line[0] in PATCH_KINDS)
    .map((line) => ({ kind: PATCH_KINDS[line[0]], text: line[0] === '@' ? line : line.slice(1) }));
  return counted(rows);
}

function counted(/** @type {Row[]} */ rows) {
  const count = (/** @type {Kind} */ kind) => rows.filter((row) => row.kind === kind).length;
  return { rows, added: count('added'), removed: count('removed') };
}

function linesOf(/** @type {string} */ text) {
  const lines = text.split('\n');
  if (lines.at(-1) === '') lines.pop();
  return lines;
}

function replaced(/** @type {string} */ before, /** @type {string} */ after) {
  const rows = (/** @type {string} */ text, /** @type {Kind} */ kind) =>
    linesOf(text).map((line) => ({ kind, text: line }));
  return [...rows(before, 'removed'), ...rows(after, 'added')];
}

/**
 * The rows of two texts; undefined if they are too long, or differ too much, to be compared.
 *
 * @param {string} before
 * @param {string} after
 * @returns {Row[] | undefined}
 */
function compared(before, after) {
  if (before.length + after.length > MAX_INPUT_CHARACTERS) return undefined;
  return diffLines(before, after, { timeout: MAX_DIFF_MS })?.flatMap((change) => {
    const kind = change.added ? 'added' : change.removed ? 'removed' : 'same';
    return linesOf(change.value).map((text) => ({ kind, text }));
  });
}

function folded(/** @type {Row[]} */ rows) {
  const near = rows.map((_, at) =>
    rows.slice(Math.max(0, at - CONTEXT_LINES), at + CONTEXT_LINES + 1).some((row) => row.kind !== 'same'),
  );
  /** @type {Row[]} */
  const shown = [];
  let skipped = 0;
  rows.forEach((row, at) => {
    if (!near[at]) skipped += 1;
    else {
      if (skipped) shown.push(skippedRow(skipped));
      skipped = 0;
      shown.push(row);
    }
  });
  if (skipped) shown.push(skippedRow(skipped));
  return shown;
}

function skippedRow(/** @type {number} */ count) {
  return { kind: /** @type {const} */ ('skipped'), text: t('diff.unchanged', { count }) };
}
