/*
 * The page without a network: the last page that was loaded, and the files that it names.
 *
 * The page itself always comes from the network if there is one. Its files have addresses that change with their
 * content, so a stored file is never stale. Nothing else is stored: no conversation, and no reply of the API.
 */

const CACHE = 'banksman-page';
const BASE = new URL('./', self.location.href);
const FILES = `${BASE.pathname}static/v`;

self.addEventListener('install', () => self.skipWaiting());
self.addEventListener('activate', (event) => event.waitUntil(self.clients.claim()));

self.addEventListener('fetch', (event) => {
  const { request } = event;
  const { origin, pathname } = new URL(request.url);
  if (request.method !== 'GET' || origin !== BASE.origin) return;
  if (request.mode === 'navigate' && pathname === BASE.pathname) event.respondWith(page(request));
  else if (pathname.startsWith(FILES)) event.respondWith(file(request));
});

async function page(request) {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request);
    if (response.ok) await replace(cache, response.clone());
    return response;
  } catch (error) {
    return (await cache.match(BASE.href)) ?? Promise.reject(error);
  }
}

/** Store a page, and drop the files of other versions than its own. */
async function replace(cache, response) {
  const text = await response.clone().text();
  const version = /static\/(v[0-9a-f]{12})\//.exec(text)?.[1];
  await cache.put(BASE.href, response);
  const stored = await cache.keys();
  const other = stored.filter(({ url }) => new URL(url).pathname.startsWith(FILES) && !url.includes(`/static/${version}/`));
  await Promise.all(other.map((request) => cache.delete(request)));
}

async function file(request) {
  const cache = await caches.open(CACHE);
  const stored = await cache.match(request.url);
  if (stored) return stored;
  const response = await fetch(request);
  // During an update another gateway may serve its own file, which it marks as not to be stored.
  if (response.ok && response.headers.get('cache-control')?.includes('immutable')) await cache.put(request.url, response.clone());
  return response;
}
