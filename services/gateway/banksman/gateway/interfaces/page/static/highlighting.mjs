/** Colour code in a worker, one source after another, within a deadline. */

import { sanitise } from './sanitise.mjs';
import { workerAddress } from './workers.mjs';

const MAX_CHARACTERS = 50_000;
const DEADLINE_MS = 3_000;
const MAX_REMEMBERED = 200;

/** @type {Worker | null} */
let worker = null;
/** @type {Promise<unknown>} */
let last = Promise.resolve();
/** @type {Map<string, Promise<string | TrustedHTML | null>>} */
const remembered = new Map();

/**
 * The sanitised markup of a source with colours; null for an unknown language, or a source that takes too long.
 *
 * @param {string} language
 * @param {string} source
 */
export function coloursOf(language, source) {
  if (!language || source.length > MAX_CHARACTERS) return Promise.resolve(null);
  const key = `${language} ${source}`;
  const known = remembered.get(key);
  if (known) return known;
  if (remembered.size >= MAX_REMEMBERED) remembered.clear();
  const made = last.then(() => coloured(language, source));
  last = made;
  remembered.set(key, made);
  return made;
}

/** @returns {Promise<string | TrustedHTML | null>} */
function coloured(/** @type {string} */ language, /** @type {string} */ source) {
  return new Promise((resolve) => {
    const address = new URL('./highlighter.mjs', import.meta.url).href;
    worker ??= new Worker(workerAddress(address), { type: 'module' });
    const end = () => {
      worker?.terminate();
      worker = null;
      resolve(null);
    };
    const timer = setTimeout(end, DEADLINE_MS);
    worker.onerror = end;
    worker.onmessage = ({ data }) => {
      clearTimeout(timer);
      resolve(data === null ? null : sanitise(data));
    };
    worker.postMessage({ language, source });
  });
}
