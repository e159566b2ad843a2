/** The keys of an approval card. None of them decides a call that the user does not see. */

import { useEffect, useRef } from 'preact/hooks';

/**
 * Handle A, R and E while the focus is in the card. The card never takes the focus by itself, so a key meant
 * for another element decides nothing. A and R decide every call, so all calls must be visible; otherwise the
 * key shows the first hidden call.
 *
 * @param {{current: Element}} card
 * @param {Record<string, () => void>} actions by key
 */
export function useCardKeys(card, actions) {
  const latest = useRef(actions);
  latest.current = actions;
  useEffect(() => {
    const onKey = (event) => {
      if (
        event.ctrlKey ||
        event.metaKey ||
        event.altKey ||
        event.repeat ||
        event.target.matches?.('input, textarea, select')
      )
        return;
      const key = event.key.toLowerCase();
      const action = latest.current[key];
      if (!action || !card.current.contains(document.activeElement)) return;
      event.preventDefault();
      const hidden = key === 'e' ? null : firstHidden(card.current);
      if (hidden) hidden.scrollIntoView({ block: 'start' });
      else action();
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, []);
}

/** The first call of a card that is not completely in view; undefined if all calls are. */
function firstHidden(card) {
  const view = card.closest('.scroller').getBoundingClientRect();
  return [...card.querySelectorAll('[data-call]')].find((call) => {
    const { top, bottom } = call.getBoundingClientRect();
    return top < view.top - 1 || bottom > view.bottom + 1;
  });
}

/** Keep Tab in the card; Escape moves the focus to the composer. */
export function trapFocus(event, card) {
  if (event.key === 'Escape') {
    document.querySelector('.composer textarea, h1[tabindex]')?.focus();
    return;
  }
  if (event.key !== 'Tab') return;
  const stops = [
    ...card.querySelectorAll('button:not(:disabled), input, select, textarea, summary, [tabindex="0"]'),
  ].filter((stop) => stop.offsetParent);
  const first = stops[0];
  const last = stops.at(-1);
  const leaving = event.shiftKey
    ? [first, card].includes(document.activeElement)
    : document.activeElement === last;
  if (!leaving) return;
  event.preventDefault();
  (event.shiftKey ? last : first)?.focus();
}
