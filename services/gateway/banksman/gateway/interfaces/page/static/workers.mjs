/** Addresses of workers. The page requires trusted types, so a browser accepts them only from a policy. */

const OWN = ['highlighter.mjs', 'service_worker.js'];

const policy = window.trustedTypes?.createPolicy('workers', {
  createScriptURL: (/** @type {string} */ address) => {
    if (OWN.some((name) => address === name || address === new URL(name, import.meta.url).href))
      return address;
    throw new TypeError(address);
  },
});

/** @param {string} address @returns {string} which the browser accepts as the script of a worker */
export function workerAddress(address) {
  return /** @type {string} */ (/** @type {unknown} */ (policy?.createScriptURL(address) ?? address));
}
