/** The keys of an approval card. None of them decides a call that the user does not see. */

import { useLayoutEffect, useRef } from 'preact/hooks';

import { isTyping } from '../ui.mjs';

/**
 * Handle A, R and E while the focus is in the card. The card never takes the focus by itself, so a key meant
 * for another element decides nothing. A and R decide every call, so they first show what was not seen yet.
 *
 * @param {{current: HTMLElement | null}} card
 * @param {Record<string, () => void>} actions by key
 */
export function useCardKeys(card, actions) {
  const latest = useRef(actions);
  latest.current = actions;
  useLayoutEffect(() => {
    const onKey = (/** @type {KeyboardEvent} */ event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || isTyping(event)) return;
      const key = event.key.toLowerCase();
      const action = latest.current[key];
      if (!action || !card.current?.contains(document.activeElement)) return;
      event.preventDefault();
      if (key === 'e' || !showsMore(card.current)) action();
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, []);
}

/** Show the next part of a card that has not been in view; return whether there was one. @param {HTMLElement} card */
function showsMore(card) {
  const view = /** @type {Element} */ (card.closest('.scroller')).getBoundingClientRect();
  const { top, bottom } = card.getBoundingClientRect();
  if (top < view.top - 1 || bottom > view.bottom + 1) {
    card.scrollIntoView({ block: bottom - top > view.height ? 'start' : 'nearest' });
    return true;
  }
  const body = /** @type {Element} */ (card.querySelector('.approval-body'));
  const hidden = body.scrollHeight - body.clientHeight - body.scrollTop;
  if (hidden > 1) body.scrollTop += body.clientHeight * 0.9;
  return hidden > 1;
}

/** Escape moves the focus from a card to the composer, or to the title of the view. @param {PageEvent} event */
export function leaveOnEscape(event) {
  const place = /** @type {HTMLElement | null} */ (
    document.querySelector('.composer textarea, h1[tabindex]')
  );
  if (event.key === 'Escape') place?.focus();
}
