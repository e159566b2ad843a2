/**
 * The texts of the page, from one catalogue for each language.
 *
 * A text contains `{name}` for each value. A text that depends on a number is an object of plural forms, chosen by
 * the value `count`; numbers are written as the language writes them.
 */

import english from './strings/en.mjs';

/** Language to the module of its texts. A language is complete: a test compares its keys with the English ones. */
export const LANGUAGES = { en: 'English', de: 'Deutsch' };
const LOADERS = { en: async () => english, de: async () => (await import('./strings/de.mjs')).default };

let language = 'en';
let texts = english;
let plurals = new Intl.PluralRules('en');
let numbers = new Intl.NumberFormat('en');

/** The language of the page, as a BCP 47 tag. */
export const locale = () => language;

/** The first language that the page speaks; English if it speaks none. @param {(string | null)[]} wanted */
export function languageFor(wanted) {
  return wanted.map((tag) => tag?.split('-')[0].toLowerCase()).find((tag) => tag in LANGUAGES) ?? 'en';
}

/** Load a language before the first text is shown, because shown texts do not change. @param {string} chosen */
export async function setLanguage(chosen) {
  texts = await LOADERS[chosen]();
  language = chosen;
  plurals = new Intl.PluralRules(chosen);
  numbers = new Intl.NumberFormat(chosen);
}

/** @param {number} value */
export const formatNumber = (value) => numbers.format(value);

/** The text of a key. @param {string} key @param {Record<string, string | number>} values */
export function t(key, values = {}) {
  return parts(key, values).join('');
}

/** The text of a key that may be missing, such as one for a status that a newer server sends. */
export function known(key, fallback) {
  return key in texts ? t(key) : fallback;
}

/** A sentence of a server in the language of the page if it equals the English text of a key; otherwise unchanged. */
export function translated(key, sentence) {
  return english[key] === sentence ? t(key) : sentence;
}

/** The pieces of a text, for values that are elements. @returns {unknown[]} */
export function parts(key, values = {}) {
  const text = formOf(texts[key] ?? key, values.count);
  return text.split(/\{(\w+)\}/).map((piece, at) => (at % 2 ? written(values[piece]) : piece));
}

/** What to show of an error: its text in the language of the page if its code has one, with the message as detail. */
export function explain(error) {
  const code = error.status === 0 ? 'unreachable' : error.code;
  return known(`error.${code}`, null) ?? reasonOf(`reason.${code}`, error.message);
}

/** The language in which services write reasons. */
const OF_SERVICES = 'en';

/**
 * A reason of a service in the language of the page: the text of its code, with the service's own text as
 * detail. On an English page it is only the service's text, which is more precise than the code.
 *
 * @param {string} key of the text of the code; a newer server may send a code without one
 * @param {string | null | undefined} detail what the service wrote
 */
export function reasonOf(key, detail) {
  const text = known(key, null);
  if (!detail || !text) return text ?? detail ?? '';
  return language === OF_SERVICES ? detail : t('reason.detail', { text, detail: detail.replace(/\.$/, '') });
}

function formOf(text, count) {
  return typeof text === 'string' ? text : (text[plurals.select(count)] ?? text.other);
}

function written(value) {
  return typeof value === 'number' ? numbers.format(value) : (value ?? '');
}
