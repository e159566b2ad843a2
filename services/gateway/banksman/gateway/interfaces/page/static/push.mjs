/** This device as a receiver of Web Push: approval requests arrive while the page is closed. */

import { t } from './strings.mjs';

const DEVICE = 'banksman.device';

/**
 * Register this device, or renew it.
 *
 * @param {import('./client/api.mjs').Api} api
 * @param {Storage} preferences
 * @returns {Promise<boolean>} false if the browser has no push service, or the gateway refuses the device
 */
export async function register(api, preferences) {
  try {
    const push = await manager();
    if (!push) return false;
    const { public_key: key } = await api.call('push.read');
    const subscription = await subscribed(push, key);
    const { endpoint, keys: given } = subscription.toJSON();
    const keys = { p256dh: given?.p256dh, auth: given?.auth };
    const device = await api.call('device.register', {}, { endpoint, keys, origin: location.origin });
    preferences.setItem(DEVICE, device.id);
    await storeWords();
    return true;
  } catch {
    return false;
  }
}

/**
 * Remove this device. If the gateway cannot be reached, the push service later reports the end of the subscription.
 *
 * @param {Api} api
 * @param {Storage} preferences
 */
export async function remove(api, preferences) {
  const id = preferences.getItem(DEVICE);
  if (!id) return;
  preferences.removeItem(DEVICE);
  await api.call('device.remove', { device_id: id }).catch(() => {});
  const subscription = await (await manager())?.getSubscription();
  await subscription?.unsubscribe();
}

async function manager() {
  // `ready` never resolves in a browser that refused the worker.
  const known = await navigator.serviceWorker?.getRegistration();
  return known ? (await navigator.serviceWorker.ready).pushManager : null;
}

/**
 * A subscription belongs to one key: another key needs another subscription.
 *
 * @param {string} key
 * @param {PushManager} push
 */
async function subscribed(push, key) {
  const current = await push.getSubscription();
  if (current && encoded(current.options.applicationServerKey) === key) return current;
  await current?.unsubscribe();
  return push.subscribe({ userVisibleOnly: true, applicationServerKey: key });
}

function encoded(/** @type {ArrayBuffer | null} */ buffer) {
  const text = btoa(String.fromCharCode(...new Uint8Array(/** @type {ArrayBuffer} */ (buffer))));
  return text.replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
}

/** Let the service worker, which loads no texts, notify in the language of the page. */
async function storeWords() {
  const words = {
    one: t('approval.titleOne', { tool: '{tool}' }),
    several: t('push.several', { calls: '{calls}' }),
    escalated: t('push.escalated'),
  };
  const cache = await caches.open('banksman-page');
  await cache.put(new URL('push-words.json', document.baseURI).href, new Response(JSON.stringify(words)));
}
