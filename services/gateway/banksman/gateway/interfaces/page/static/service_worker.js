/*
 * Serves the last loaded page and its files without a network, and shows notifications of approval requests
 * while the page is closed.
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

self.addEventListener('push', (event) => event.waitUntil(notify(event.data.json())));

self.addEventListener('notificationclick', (event) => {
  event.notification.close();
  event.waitUntil(show(event.notification.data.address));
});

/** Show the pushed message of a gateway. Browsers end the subscription of a worker that shows nothing. */
async function notify({ type, approval_id: id, calls, tool, text }) {
  const words = await (await caches.match(`${BASE.href}push-words.json`))?.json();
  let title = words?.one.replace('{tool}', () => tool) ?? tool;
  if (type === 'approval.escalated') title = words?.escalated ?? 'Banksman';
  else if (calls > 1) title = words?.several.replace('{calls}', calls) ?? `${calls} × ${tool}`;
  // The tag is the id of the request, so the notification of its escalation replaces the first notification.
  await self.registration.showNotification(title, {
    body: text,
    tag: id,
    data: { address: `${BASE.href}#/approvals/${encodeURIComponent(id)}` },
  });
}

async function show(address) {
  const [open] = await self.clients.matchAll({ type: 'window' });
  if (!open) return self.clients.openWindow(address);
  await open.navigate(address);
  return open.focus();
}

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

/** Store a page and drop the files of other versions. */
async function replace(cache, response) {
  const text = await response.clone().text();
  const version = /static\/(v[0-9a-f]{12})\//.exec(text)?.[1];
  await cache.put(BASE.href, response);
  const stored = await cache.keys();
  const other = stored.filter(
    ({ url }) => new URL(url).pathname.startsWith(FILES) && !url.includes(`/static/${version}/`),
  );
  await Promise.all(other.map((request) => cache.delete(request)));
}

async function file(request) {
  const cache = await caches.open(CACHE);
  const stored = await cache.match(request.url);
  if (stored) return stored;
  const response = await fetch(request);
  // During an update another gateway may serve its own file, which it marks as not to be stored.
  if (response.ok && response.headers.get('cache-control')?.includes('immutable'))
    await cache.put(request.url, response.clone());
  return response;
}
