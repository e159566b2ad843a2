/** The difference of two texts as rows. */

import { diffLines } from 'diff/line';

import { t } from './strings.mjs';

const MAX_INPUT_CHARACTERS = 200_000;
const MAX_DIFF_MS = 200;
const CONTEXT_LINES = 3;

/**
 * Compare two texts by line.
 *
 * @param {string | null} before `null` when the file is new
 * @param {string} after
 * @returns {{rows: {kind: 'same' | 'added' | 'removed' | 'skipped', text: string}[], added: number, removed: number}}
 *   a long run of unchanged lines becomes one `skipped` row; `added` and `removed` count lines
 */
export function lineRows(before, after) {
  const rows = compared(before ?? '', after) ?? replaced(before ?? '', after);
  const count = (kind) => rows.filter((row) => row.kind === kind).length;
  return { rows: folded(rows), added: count('added'), removed: count('removed') };
}

const PATCH_KINDS = { '+': 'added', '-': 'removed', ' ': 'same', '@': 'skipped' };

/**
 * The rows of a file's patch, which the platform has computed.
 *
 * @param {string} patch
 * @returns {ReturnType<typeof lineRows>}
 */
export function patchRows(patch) {
  const lines = linesOf(patch);
  const first = lines.findIndex((line) => line.startsWith('@@'));
  const rows = (first < 0 ? [] : lines.slice(first))
    .filter((line) => line[0] in PATCH_KINDS)
    .map((line) => ({ kind: PATCH_KINDS[line[0]], text: line[0] === '@' ? line : line.slice(1) }));
  const count = (kind) => rows.filter((row) => row.kind === kind).length;
  return { rows, added: count('added'), removed: count('removed') };
}

function linesOf(/** @type {string} */ text) {
  const lines = text.split('\n');
  if (lines.at(-1) === '') lines.pop();
  return lines;
}

function replaced(/** @type {string | null | undefined} */ before, /** @type {string | null} */ after) {
  const rows = (text, kind) => linesOf(text).map((line) => ({ kind, text: line }));
  return [...rows(before, 'removed'), ...rows(after, 'added')];
}

/**
 * The rows of two texts; undefined if they are too long, or differ too much, to be compared.
 *
 * @param {string | null | undefined} before
 * @param {string | null} after
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
  return { kind: 'skipped', text: t('diff.unchanged', { count }) };
}
