/** Status lines: the connection, notices of the server, and transient errors. */

import { useEffect, useState } from 'preact/hooks';

import { reasonOf, t, translated } from '../strings.mjs';
import { Icon, IconButton, LinkButton, html, useStore } from './ui.mjs';

const SHOW_CONNECTING_AFTER_MS = 1500;

export function ConnectionBanner() {
  const { session } = useStore();
  const { phase, retryInS, reason, code, since } = session.connection.value;
  // A library wrote the reason of another code than those of a gateway.
  const written = (code ?? 0) >= 4000 ? reason : null;
  const late = useLate(phase === 'connecting', SHOW_CONNECTING_AFTER_MS);
  const left = useCountdown(phase === 'offline' ? (since ?? 0) + (retryInS ?? 0) * 1000 : null);
  const again = (/** @type {string} */ label) =>
    html`<${LinkButton} onClick=${() => session.reconnect()}>${label}<//>`;
  switch (phase) {
    case 'connecting':
      return late
        ? html`<div class="banner bar text-s" role="status">
            <span class="spinner" />${t('connection.connecting')}
          </div>`
        : null;
    case 'offline':
      return html`<div class="banner warning bar text-s" role="status">
        <${Icon} name="warning" size=${16} />
        <span>${left > 0 ? t('connection.offline', { count: left }) : t('connection.offlineNow')}</span
        >${again(t('connection.reconnect'))}
      </div>`;
    case 'outdated':
      return html`<div class="banner warning bar text-s" role="alert">
        <span>${t('connection.outdated')}</span>
        <${LinkButton} onClick=${() => location.reload()}>${t('connection.reload')}<//>
      </div>`;
    case 'stopped':
      return html`<div class="banner warning bar text-s" role="alert">
        <span>${t('connection.stopped', { reason: reasonOf(`connection.closed.${code}`, written) })}</span>
        ${again(t('connection.again'))}
        ${
          session.token && html`<${LinkButton} onClick=${() => session.logout()}>${t('connection.other')}<//>`
        }
      </div>`;
    default:
      return null;
  }
}

function useLate(/** @type {boolean} */ active, /** @type {number} */ delayMs) {
  const [late, setLate] = useState(false);
  useEffect(() => {
    setLate(false);
    if (!active) return undefined;
    const timer = setTimeout(() => setLate(true), delayMs);
    return () => clearTimeout(timer);
  }, [active]);
  return late;
}

function useCountdown(/** @type {number | null} */ until) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!until) return undefined;
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, [until]);
  return until ? Math.max(0, Math.ceil((until - now) / 1000)) : 0;
}

/** The notices of `welcome`, such as that tools are off or that the demo model replies. */
export function Notices() {
  const { session } = useStore();
  const [hidden, setHidden] = useState('');
  const notices = session.welcome.value?.notices ?? [];
  const text = notices.join('\n');
  if (!notices.length || hidden === text) return null;
  return html`<div class="notice-bar bar text-s soft" role="note">
    <${Icon} name="info" size=${16} />
    <div class="grow">${notices.map((notice) => html`<p>${translated('notice.demo', notice)}</p>`)}</div>
    <${IconButton} name="close" label=${t('notices.hide')} size=${16} onClick=${() => setHidden(text)} />
  </div>`;
}

export function Toasts() {
  const { toasts } = useStore();
  return html`<div class="toasts" role="alert">
    ${toasts.items.value.map(
      (toast) =>
        html`<div class=${`toast bar text-m card ${toast.tone}`} key=${toast.key}>
          <span class="grow">${toast.text}</span>
          <${IconButton}
            name="close"
            label=${t('notices.dismiss')}
            size=${16}
            onClick=${() => toasts.dismiss(toast.key)} />
        </div>`,
    )}
  </div>`;
}
