/** Maths as MathML, which the browser draws without further styles or fonts. The library is loaded on first use. */

import { signal } from '@preact/signals';

import { mayHoldMaths } from './markdown.mjs';

const MAX_SOURCE_CHARACTERS = 4_000;
const MAX_REMEMBERED = 500;
/** Maximum macro expansions in one formula, and maximum size in em. The formula is untrusted text of the model. */
const LIMITS = { maxExpand: 200, maxSize: 20, trust: false, strict: 'ignore', throwOnError: true };

/** @typedef {{renderToString: (source: string, options: object) => string}} Library */

const library = signal(/** @type {Library | null} */ (null));
/** @type {Promise<unknown> | null} */
let loading = null;
/** @type {Map<string, string | null>} */
const remembered = new Map();

/** A function that converts TeX; null while it is not loaded or not needed. Loads it if `text` needs it. @param {string} text */
export function mathsFor(text) {
  if (!mayHoldMaths(text)) return null;
  loading ??= import('katex').then(
    () => (library.value = /** @type {{katex: Library} & typeof globalThis} */ (globalThis).katex),
    () => (loading = null),
  );
  return library.value === null ? null : markupOf;
}

/** The MathML of a formula, not sanitised yet; null if it cannot be converted. @param {string} source @param {boolean} display */
function markupOf(source, display) {
  const key = `${display}${source}`;
  if (!remembered.has(key)) {
    if (remembered.size >= MAX_REMEMBERED) remembered.clear();
    remembered.set(key, converted(source, display));
  }
  return remembered.get(key) ?? null;
}

function converted(/** @type {string} */ source, /** @type {boolean} */ display) {
  if (source.length > MAX_SOURCE_CHARACTERS || !library.value) return null;
  try {
    const markup = library.value.renderToString(source, {
      ...LIMITS,
      displayMode: display,
      output: 'mathml',
    });
    return markup.replaceAll(/<annotation[^>]*>[^]*?<\/annotation>/g, '');
  } catch {
    return null;
  }
}
