/** The files of drafts, in a database of the browser. */

const NAME = 'banksman.drafts';
const STORE = 'files';

/** Keep the files of a draft; none removes them. @param {string} key @param {File[]} files */
export const put = (key, files) =>
  within(
    'readwrite',
    (store) => /** @type {IDBRequest<unknown>} */ (files.length ? store.put(files, key) : store.delete(key)),
  );

/** The files of a draft. @param {string} key @returns {Promise<File[]>} */
export const get = async (key) => (await within('readonly', (store) => store.get(key))) ?? [];

export const clear = () => within('readwrite', (store) => store.clear());

/**
 * @template T
 * @param {IDBTransactionMode} mode
 * @param {(store: IDBObjectStore) => IDBRequest<T>} action
 */
async function within(mode, action) {
  const opening = indexedDB.open(NAME, 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
  const database = await done(opening);
  try {
    return await done(action(database.transaction(STORE, mode).objectStore(STORE)));
  } finally {
    database.close();
  }
}

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
