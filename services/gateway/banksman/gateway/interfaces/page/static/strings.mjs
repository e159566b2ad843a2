/**
 * The texts of the page, from one catalogue for each language.
 *
 * A text contains `{name}` for each value. A text that depends on a number is an object of plural forms, chosen by
 * the value `count`; numbers are written as the language writes them.
 */

import chat from './strings/en/chat.mjs';
import common from './strings/en/common.mjs';
import navigation from './strings/en/navigation.mjs';

/** The languages of the page. Each is complete: the type checker and a test compare its keys with the English ones. */
export const LANGUAGES = { en: 'English', de: 'Deutsch' };

/** @typedef {keyof typeof LANGUAGES} Language */
/** @typedef {string | {one?: string, other: string}} Text a text, or its plural forms */
/** @template T @typedef {{[Key in keyof T]: T[Key] extends string ? string : Text}} Translation */
/** @typedef {keyof typeof common | keyof typeof navigation | keyof typeof chat} StartKey the texts of the start */
/**
 * The key of a text. The texts of other features than those of the start are loaded with their views.
 *
 * @typedef {StartKey
 *   | keyof typeof import("./strings/en/approvals.mjs").default
 *   | keyof typeof import("./strings/en/assistants.mjs").default
 *   | keyof typeof import("./strings/en/audit.mjs").default
 *   | keyof typeof import("./strings/en/files.mjs").default
 *   | keyof typeof import("./strings/en/forms.mjs").default
 *   | keyof typeof import("./strings/en/mcp.mjs").default
 *   | keyof typeof import("./strings/en/models.mjs").default
 *   | keyof typeof import("./strings/en/operator.mjs").default
 *   | keyof typeof import("./strings/en/people.mjs").default
 *   | keyof typeof import("./strings/en/runs.mjs").default
 *   | keyof typeof import("./strings/en/schedules.mjs").default
 *   | keyof typeof import("./strings/en/workflows.mjs").default} Key
 */

/** @type {Record<string, Text>} */
const english = { ...common, ...navigation, ...chat };
const texts = { ...english };
/** Features whose texts are loaded. */
const loaded = new Set(['common', 'navigation', 'chat']);
/** @type {Language} */
let language = 'en';
let plurals = new Intl.PluralRules('en');
let numbers = new Intl.NumberFormat('en');

/** The language of the page, as a BCP 47 tag. */
export const locale = () => language;

/** The first language that the page speaks; English if it speaks none. @param {(string | null)[]} wanted */
export function languageFor(wanted) {
  return wanted.map((tag) => tag?.split('-')[0].toLowerCase() ?? '').find((tag) => tag in LANGUAGES) ?? 'en';
}

/** Load a language before the first text is shown, because shown texts do not change. @param {Language} chosen */
export async function setLanguage(chosen) {
  language = chosen;
  plurals = new Intl.PluralRules(chosen);
  numbers = new Intl.NumberFormat(chosen);
  await Promise.all([...loaded].map(readTexts));
}

/**
 * Load a module together with the texts of features that it shows, each of `strings/{language}/`.
 *
 * @template M
 * @param {Promise<M>} module
 * @param {...string} features
 * @returns {Promise<M>}
 */
export async function withTexts(module, ...features) {
  await Promise.all(features.filter((feature) => !loaded.has(feature)).map(readTexts));
  return module;
}

async function readTexts(/** @type {string} */ feature) {
  const read = [import(`./strings/en/${feature}.mjs`), import(`./strings/${language}/${feature}.mjs`)];
  const [original, chosen] = await Promise.all(read);
  Object.assign(english, original.default);
  Object.assign(texts, chosen.default);
  loaded.add(feature);
}

export const formatNumber = (/** @type {number} */ value) => numbers.format(value);

/** The text of a key. @param {Key} key @param {Record<string, unknown>} values */
export function t(key, values = {}) {
  return parts(key, values).join('');
}

/**
 * The text of a key that may be missing, such as one for a status that a newer server sends.
 *
 * @template F
 * @param {string} key
 * @param {F} fallback
 * @returns {string | F}
 */
export function known(key, fallback) {
  return key in texts ? t(/** @type {Key} */ (key)) : fallback;
}

/** A sentence of a server in the language of the page if it equals the English text of a key; otherwise unchanged. @param {string} key @param {string} sentence */
export function translated(key, sentence) {
  return english[key] === sentence ? known(key, sentence) : sentence;
}

/**
 * The pieces of a text, for values that are elements.
 *
 * @param {Key} key
 * @param {Record<string, unknown>} values
 * @returns {unknown[]}
 */
export function parts(key, values = {}) {
  const text = formOf(texts[key] ?? key, Number(values.count));
  return text.split(/\{(\w+)\}/).map((piece, at) => (at % 2 ? written(values[piece]) : piece));
}

/**
 * What to show of an error: its text in the language of the page if its code has one, with the message as detail. A
 * message of the browser or of a library is written to the console only.
 *
 * @param {any} error
 */
export function explain(error) {
  const isOurs = typeof error.code === 'string' || error.status === 0 || error.constructor === Error;
  if (!isOurs) console.error(error);
  const code = !isOurs ? 'unexpected' : error.status === 0 ? 'unreachable' : error.code;
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
  const { text, detail: more } = partsOf(key, detail);
  return more ? t('reason.detail', { text, detail: more.replace(/\.$/, '') }) : text;
}

/** The two parts of `reasonOf`. @param {string} key @param {string | null | undefined} detail */
export function partsOf(key, detail) {
  const text = known(key, null);
  if (!detail || !text) return { text: text ?? detail ?? '', detail: '' };
  return language === OF_SERVICES ? { text: detail, detail: '' } : { text, detail };
}

function formOf(/** @type {Text} */ text, /** @type {number} */ count) {
  return typeof text === 'string'
    ? text
    : plurals.select(count) === 'one'
      ? (text.one ?? text.other)
      : text.other;
}

function written(/** @type {unknown} */ value) {
  return typeof value === 'number' ? numbers.format(value) : (value ?? '');
}
