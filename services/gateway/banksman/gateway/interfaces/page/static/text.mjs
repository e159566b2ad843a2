/** Format sizes, durations and costs, and make invisible characters visible. */

import { locale, t } from './strings.mjs';

/** The characters that do not show. `contracts/visible.py` has the same ranges and explains them; a test compares both. */
const HIDDEN = new RegExp(
  '[\\x00-\\x08\\x0b-\\x1f\\x7f-\\xa0' +
    '\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000' +
    '\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u206f\\u3164' +
    '\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufff8\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}' +
    '\\ufff9-\\ufffb\\u{13430}-\\u{1343f}' +
    '\\u2800\\u{1d159}\\u{16fe4}' +
    '\\ud800-\\udfff\\ue000-\\uf8ff\\ufdd0-\\ufdef\\ufffe\\uffff\\u{1fffe}\\u{1ffff}\\u{2fffe}\\u{2ffff}' +
    '\\u{3fffe}-\\u{10ffff}]',
  'gu',
);

const NAMES = new Map([
  ['\u00A0', 'NBSP'],
  ['\u00AD', 'SHY'],
  ['\u200B', 'ZWSP'],
  ['\u200C', 'ZWNJ'],
  ['\u200D', 'ZWJ'],
  ['\u200E', 'LRM'],
  ['\u200F', 'RLM'],
  ['\u202A', 'LRE'],
  ['\u202B', 'RLE'],
  ['\u202C', 'PDF'],
  ['\u202D', 'LRO'],
  ['\u202E', 'RLO'],
  ['\u2066', 'LRI'],
  ['\u2067', 'RLI'],
  ['\u2068', 'FSI'],
  ['\u2069', 'PDI'],
  ['\uFEFF', 'BOM'],
  ['\r', 'CR'],
  ['\u001B', 'ESC'],
]);

/**
 * Split a string at its hidden characters.
 *
 * @param {string} text
 * @returns {{text: string, hidden: boolean}[]} pieces in order; a hidden piece contains the character's name
 *   (`RLO`) or code point (`U+200B`).
 */
export function reveal(text) {
  const pieces = [];
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > from) pieces.push({ text: text.slice(from, match.index), hidden: false });
    pieces.push({ text: nameOf(match[0]), hidden: true });
    from = match.index + match[0].length;
  }
  if (from < text.length) pieces.push({ text: text.slice(from), hidden: false });
  return pieces;
}

function nameOf(/** @type {string} */ character) {
  const code = (character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, '0');
  return NAMES.get(character) ?? `U+${code}`;
}

export function formatBytes(/** @type {number} */ bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const units = ['KiB', 'MiB', 'GiB', 'TiB'];
  let value = bytes;
  let unit = -1;
  do {
    value /= 1024;
    unit += 1;
  } while (value >= 1024 && unit < units.length - 1);
  return `${withDecimals(value, value < 10 ? 1 : 0)} ${units[unit]}`;
}

function withDecimals(/** @type {number} */ value, /** @type {number} */ digits, style = {}) {
  return value.toLocaleString(locale(), {
    ...style,
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
}

export function formatDuration(/** @type {number} */ milliseconds) {
  if (milliseconds < 1000) return t('duration.ms', { n: Math.round(milliseconds) });
  if (milliseconds < 9_950) return t('duration.s', { n: Math.round(milliseconds / 100) / 10 });
  // Rounded before the division, so that 119.7 s are 2 min and not 1 min 60 s.
  const seconds = Math.round(milliseconds / 1000);
  if (seconds < 60) return t('duration.s', { n: seconds });
  const minutes = Math.floor(seconds / 60);
  const [whole, unit, rest, smaller] =
    minutes < 60
      ? /** @type {const} */ ([minutes, 'min', seconds % 60, 's'])
      : /** @type {const} */ ([Math.floor(minutes / 60), 'h', minutes % 60, 'min']);
  return t(rest ? `duration.${unit}` : `duration.${unit}Only`, { [unit]: whole, [smaller]: rest });
}

/** @param {number | null | undefined} dollars `null` for an unknown price, which is not zero. */
export function formatCost(dollars) {
  if (dollars === null || dollars === undefined) return '';
  const digits = dollars === 0 ? 0 : dollars < 0.01 ? 4 : 2;
  return withDecimals(dollars, digits, {
    style: 'currency',
    currency: 'USD',
    currencyDisplay: 'narrowSymbol',
  });
}

/**
 * Format a past time for a list: the time of day for today, else the date.
 *
 * @param {string | null | undefined} timestamp RFC 3339
 * @param {Date} now
 */
export function formatWhen(timestamp, now = new Date()) {
  if (!timestamp) return '';
  const moment = new Date(timestamp);
  if (Number.isNaN(moment.getTime())) return '';
  if (moment.toDateString() === now.toDateString()) {
    return moment.toLocaleTimeString(locale(), { timeStyle: 'short' });
  }
  const sameYear = moment.getFullYear() === now.getFullYear();
  return moment.toLocaleDateString(locale(), {
    day: 'numeric',
    month: 'short',
    ...(sameYear ? {} : { year: 'numeric' }),
  });
}

/** A time with its date, also one that is still to come. @param {string} timestamp RFC 3339 */
export function formatMoment(timestamp) {
  return new Date(timestamp).toLocaleString(locale(), { dateStyle: 'medium', timeStyle: 'short' });
}

/**
 * The text of a message's content.
 *
 * @param {string | {type: string, text?: string, path?: string}[] | null | undefined} content
 */
export function contentText(content) {
  if (content === null || content === undefined) return '';
  if (typeof content === 'string') return content;
  return content
    .map((part) =>
      part.type === 'text'
        ? part.text
        : part.type === 'file'
          ? t('content.filePart', { path: part.path })
          : t('content.imagePart'),
    )
    .join('\n\n');
}

/** Number of Unicode code points, the unit of a delta's `offset`. @param {string} text */
export function codePoints(text) {
  let count = 0;
  for (let i = 0; i < text.length; i += 1) {
    const unit = text.charCodeAt(i);
    if (unit < 0xdc00 || unit > 0xdfff) count += 1;
  }
  return count;
}

const MAX_LINE_CHARACTERS = 5_000;

/** A text without the ends of very long lines, which a browser takes seconds to lay out. @param {string} text */
export function cutLines(text) {
  if (text.length <= MAX_LINE_CHARACTERS) return text;
  return text.split('\n').map(cutLine).join('\n');
}

function cutLine(/** @type {string} */ line) {
  const more = line.length - MAX_LINE_CHARACTERS;
  return more > 0 ? `${line.slice(0, MAX_LINE_CHARACTERS)}${t('content.lineCut', { count: more })}` : line;
}

const MAX_IMAGE_DATA_CHARACTERS = 2_000_000;

/**
 * True for a data URL of an image. SVG is excluded, because it is a document that may contain references.
 *
 * @param {string} address
 */
export function isImageData(address) {
  return (
    address.length <= MAX_IMAGE_DATA_CHARACTERS &&
    /^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/.test(address)
  );
}
