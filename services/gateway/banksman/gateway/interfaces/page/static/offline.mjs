/** The offline page, served by a service worker. Browsers allow one only on https and on localhost. */

import { workerAddress } from './workers.mjs';

export async function register() {
  if (!navigator.serviceWorker) return;
  const worker = await navigator.serviceWorker
    .register(workerAddress('service_worker.js'), { updateViaCache: 'none' })
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
