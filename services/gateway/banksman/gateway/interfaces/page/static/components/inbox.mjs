/** Approval requests one below the other: decide each on its card, or several at once. */

import { useLayoutEffect, useRef, useState } from 'preact/hooks';

import { explain, t } from '../strings.mjs';
import { formatWhen } from '../text.mjs';
import { ApprovalCard } from './approval.mjs';
import { LinkButton, html, isTyping, useStore } from './ui.mjs';

/** Time for a person to see that the requests have moved. */
const SETTLED_MS = 400;

/** @param {{requests: Waiting[], keys?: boolean}} properties */
export function ApprovalList({ requests, keys = false }) {
  const { inbox } = useStore();
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const [chosen, setChosen] = useState(/** @type {Set<string>} */ (new Set()));
  const [failed, setFailed] = useState(/** @type {string[]} */ ([]));
  const marked = requests.filter((request) => chosen.has(request.id));
  const toggle = (/** @type {string} */ id) =>
    setChosen(chosen.has(id) ? without(chosen, id) : new Set(chosen).add(id));
  useListKeys(list, keys, toggle);
  /** A click that was meant for a request which another person has just decided. @param {MouseEvent} event */
  const onlySettled = (event) =>
    event.detail > 0 && performance.now() - inbox.movedAt < SETTLED_MS && event.stopPropagation();

  const decideAll = async (/** @type {Decision} */ decision) => {
    /** @type {string[]} */
    const problems = [];
    for (const request of marked) {
      const digests = request.items.map((item) => item.digest);
      await inbox
        .decide(request.id, { all: decision, digests })
        .catch((error) => problems.push(`${request.title}: ${explain(error)}`));
    }
    setChosen(new Set());
    setFailed(problems);
  };
  return html`${failed.map((problem) => html`<p class="form-error" role="alert">${problem}</p>`)}
    <ul class="inbox" ref=${list} onClickCapture=${onlySettled}>
      ${requests.map(
        (request) =>
          html`<${Request}
            key=${request.id}
            request=${request}
            chosen=${chosen.has(request.id)}
            several=${requests.length > 1}
            onChoose=${() => toggle(request.id)} />`,
      )}
    </ul>
    ${
      marked.length > 0 &&
      html`<div class="inbox-bar wrap" role="group" aria-label=${t('inbox.chosen', { count: marked.length })}>
        <span class="grow">${t('inbox.chosen', { count: marked.length })}</span>
        <button type="button" class="button primary" onClick=${() => decideAll('approve')}>
          ${t('inbox.approveChosen', { count: marked.length })}
        </button>
        <button type="button" class="button" onClick=${() => decideAll('reject')}>
          ${t('inbox.rejectChosen', { count: marked.length })}
        </button>
      </div>`
    }`;
}

function without(/** @type {Set<string>} */ set, /** @type {string} */ id) {
  return new Set([...set].filter((other) => other !== id));
}

/** @param {{request: Waiting, chosen: boolean, several: boolean, onChoose: () => void}} properties */
function Request({ request, chosen, several, onChoose }) {
  const { inbox, toasts } = useStore();
  const setAside = () => toasts.attempt(() => inbox.setAside(request.id));
  const title = request.title || t('conversation.untitled');
  const since = formatWhen(request.requestedAt);
  return html`<li class="inbox-item" data-request=${request.id}>
    <div class="inbox-head wrap">
      ${
        several &&
        html`<label class="inbox-choose"
          ><input
            type="checkbox"
            checked=${chosen}
            onChange=${onChoose}
            aria-label=${t('inbox.choose', { title })}
        /></label>`
      }
      <a href=${`#/c/${request.conversationId}`}>${title}</a>
      <span class="muted"
        >${
          request.requestedBy
            ? t('inbox.requested', { user: request.requestedBy, since })
            : t('inbox.requestedSince', { since })
        }</span
      >
      ${request.escalated && html`<span class="badge">${t('inbox.escalated')}</span>`}
      ${
        request.forYou &&
        html`<${LinkButton} title=${t('inbox.notNowTitle')} onClick=${setAside}>${t('inbox.notNow')}<//>`
      }
    </div>
    <${ApprovalCard} approval=${request} />
  </li>`;
}

const focusCard = (/** @type {Element | undefined} */ item) =>
  /** @type {HTMLElement | null | undefined} */ (item?.querySelector('.approval'))?.focus();

/**
 * J and K move between the cards, X chooses one; the cards themselves handle A, R and E.
 *
 * @param {{current: HTMLElement | null}} list
 * @param {boolean} active
 * @param {(id: string) => void} toggle
 */
function useListKeys(list, active, toggle) {
  const latest = useRef(toggle);
  latest.current = toggle;
  useLayoutEffect(() => {
    if (!active) return undefined;
    const onKey = (/** @type {KeyboardEvent} */ event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event) || !list.current) return;
      const cards = /** @type {HTMLElement[]} */ ([...list.current.querySelectorAll('.inbox-item')]);
      const at = cards.findIndex((card) => card.contains(document.activeElement));
      if (event.key === 'j') focusCard(cards[Math.min(at + 1, cards.length - 1)]);
      else if (event.key === 'k') focusCard(cards[Math.max(at - 1, 0)]);
      else if (event.key === 'x' && at >= 0) latest.current(cards[at].dataset.request ?? '');
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, []);
}
