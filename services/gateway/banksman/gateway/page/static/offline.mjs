/** The page without a network, by a service worker. Browsers allow one on https and on this machine. */

export async function register() {
  if (!navigator.serviceWorker) return;
  const address = 'service_worker.js';
  const policy = globalThis.trustedTypes?.createPolicy('service-worker', { createScriptURL: () => address });
  const worker = await navigator.serviceWorker.register(policy?.createScriptURL('') ?? address, { updateViaCache: 'none' }).catch(() => null);
  if (worker) await store();
}

/** Let the worker store what was loaded before it began to serve this page. */
async function store() {
  await navigator.serviceWorker.ready;
  const cache = await caches.open('banksman-page');
  const base = new URL('./', document.baseURI).href;
  const files = performance.getEntriesByType('resource').map(({ name }) => name);
  const versioned = [...new Set(files)].filter((name) => name.startsWith(`${base}static/v`));
  // The browser has them all: this reads its own cache.
  await Promise.all([base, ...versioned].map(async (name) => (await cache.match(name)) ?? cache.add(name)));
}
