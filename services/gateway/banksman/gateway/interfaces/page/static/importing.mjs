/** Import of files of conversations: our exports, and those of other products. Loaded when a user chooses a file. */

import { t } from './strings.mjs';

export const MAX_FILE_BYTES = 64 * 1024 * 1024;

/**
 * @typedef {object} Imported
 * @property {string} title
 * @property {string} product
 * @property {string | null} conversation_id null with `error`
 * @property {number} runs
 * @property {Record<string, number>} left_out how many parts are missing, by name
 * @property {string | null} error
 */

/**
 * @param {import('./client/api.mjs').Api} api
 * @param {File} file
 * @returns {Promise<Imported[]>} what was imported, in the order of the file
 * @throws {Error} with a reason for the user; `ApiError` if the gateway refuses the file
 */
export async function imported(api, file) {
  if (file.size > MAX_FILE_BYTES) throw new Error(t('import.tooLarge'));
  /** @type {Imported[]} */
  const items = [];
  /** @type {number | null} */
  let start = 0;
  while (start !== null) {
    const page = await api.importFile(file, start);
    items.push(...page.items);
    start = page.next;
  }
  const [first] = items;
  if (items.length === 1 && first.product === 'banksman' && first.conversation_id)
    first.left_out = { ...first.left_out, ...(await uploaded(api, file, first.conversation_id)) };
  return items;
}

/**
 * Store the attached files of an export in the new workspace; return those that were not, each once.
 *
 * @param {import('./client/api.mjs').Api} api
 * @param {File} file
 * @param {string} conversationId
 */
async function uploaded(api, file, conversationId) {
  const { files = [] } = JSON.parse(await file.text());
  /** @type {Record<string, number>} */
  const refused = {};
  for (const { path, data } of files) {
    try {
      await api.upload(conversationId, path, new Blob([bytesOf(data)]));
    } catch {
      refused[path] = 1;
    }
  }
  return refused;
}

/** @param {string} url a data URL in base64 */
const bytesOf = (url) => Uint8Array.from(atob(url.slice(url.indexOf(',') + 1)), (one) => one.charCodeAt(0));
