/** The offline page, served by a service worker. Browsers allow one only on https and on localhost. */

export async function register() {
  if (!navigator.serviceWorker) return;
  const address = 'service_worker.js';
  // The page requires trusted types, so a browser accepts the address of a worker only from a policy.
  const policy = window.trustedTypes?.createPolicy('service-worker', { createScriptURL: () => address });
  const worker = await navigator.serviceWorker
    .register(policy?.createScriptURL('') ?? address, { updateViaCache: 'none' })
    .catch(() => null);
  if (worker) await store();
}

/** Let the worker store the files that were loaded before it began to serve this page. */
async function store() {
  await navigator.serviceWorker.ready;
  const cache = await caches.open('banksman-page');
  const base = new URL('./', document.baseURI).href;
  const files = performance.getEntriesByType('resource').map(({ name }) => name);
  const versioned = [...new Set(files)].filter((name) => name.startsWith(`${base}static/v`));
  // The browser has already loaded all files, so its HTTP cache serves these requests.
  await Promise.all([base, ...versioned].map(async (name) => (await cache.match(name)) ?? cache.add(name)));
}
