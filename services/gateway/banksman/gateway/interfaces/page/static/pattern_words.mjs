/** Regular expressions in words, because users do not read expressions. */

import { t } from './strings.mjs';

/** @type {[string, Key][]} */
const CLASS_WORDS = [
  ['a-zA-Z', 'pattern.letters'],
  ['A-Za-z', 'pattern.letters'],
  ['a-z', 'pattern.lower'],
  ['A-Z', 'pattern.upper'],
  ['0-9', 'pattern.digits'],
];
const PIECE = /(?:\[([^\]^\\][^\]\\]*)\]|(\\d)|([\w -]))(\{\d+(?:,\d*)?\}|[+*?])?/y;

/** The requirement of a pattern in words. @param {{pattern: string, examples?: unknown[]}} options */
export function patternProblem({ pattern, examples }) {
  const words = patternWords(pattern);
  if (words) return t('check.pattern', { pattern: words });
  return Array.isArray(examples) && examples.length
    ? t('check.formExample', { example: String(examples[0]) })
    : t('check.form');
}

/**
 * A simple pattern in words, or null: a sequence of at most three characters or classes, such as `^[a-z]{2,4}$`.
 *
 * @param {string} pattern
 */
export function patternWords(pattern) {
  const body = /^\^(.*)\$$/s.exec(pattern)?.[1];
  if (!body) return null;
  const words = [];
  PIECE.lastIndex = 0;
  while (PIECE.lastIndex < body.length) {
    const piece = PIECE.exec(body);
    if (!piece || words.length === 3) return null;
    words.push(pieceWords(piece));
  }
  return words.join(t('pattern.then'));
}

function pieceWords(/** @type {RegExpExecArray} */ [, set, digit, character, quantifier = '']) {
  if (character && !quantifier) return quoted(character);
  const what = digit ? t('pattern.digits') : character ? quoted(character) : classWords(set);
  const [, least, comma, most] = /^\{(\d+)(,?)(\d*)\}$/.exec(quantifier) ?? [];
  if (quantifier === '') return t('pattern.one', { what });
  if (quantifier === '?') return t('pattern.optional', { what });
  if (quantifier === '+') return t('pattern.some', { what });
  if (quantifier === '*') return t('pattern.any', { what });
  if (!comma) return t('pattern.exactly', { least, what });
  if (!most) return t('pattern.atLeast', { least, what });
  return least === '0' ? t('pattern.upTo', { most, what }) : t('pattern.between', { least, most, what });
}

const quoted = (/** @type {string} */ text) => t('pattern.quoted', { text });

function classWords(/** @type {string} */ set) {
  const words = [];
  let rest = set;
  for (const [range, word] of CLASS_WORDS) {
    if (rest.includes(range)) {
      words.push(t(word));
      rest = rest.replace(range, '');
    }
  }
  return [
    ...words,
    ...[...rest].map((character) => (character === ' ' ? t('pattern.spaces') : quoted(character))),
  ].join(', ');
}

/** An error of the server without the pattern that it names. @param {string} message */
export function withoutPattern(message) {
  return message.replaceAll(/must match pattern '(?:[^'\\]|\\.)*'/g, t('check.form'));
}
