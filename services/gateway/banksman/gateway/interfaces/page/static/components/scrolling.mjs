/**
 * Scrolling of a conversation: its end stays in view, and content is drawn only near the view, so that a
 * conversation of thousands of messages costs only the messages that are read.
 */

import { useLayoutEffect, useRef, useState } from 'preact/hooks';

import { isTyping } from './ui.mjs';

/** Distance from the view, relative to its height, within which content is drawn before the user scrolls to it. */
const MARGIN = '200% 0px';

/** Distance from the end within which the end is kept in view. */
const NEAR_END_PX = 80;
const CARD_MARGIN_PX = 16;
/** How long a hit of the browser's search stays in view while what is around it is drawn. */
const HELD_MS = 1_000;

/** How an element is hidden whose text the browser's search finds; null in a browser that would not find it. */
export const UNTIL_FOUND = 'onbeforematch' in HTMLElement.prototype ? 'until-found' : null;
const GESTURES = ['wheel', 'touchmove', 'pointerdown', 'keydown'];

/** @type {WeakMap<Element, IntersectionObserver>} */
const observers = new WeakMap();
/** @type {WeakMap<Element, (keepsEnd?: boolean) => void>} draw; `keepsEnd`: and keep what follows in place */
const waiting = new WeakMap();
/** @type {Set<Element>} */
const queue = new Set();

/**
 * True once the element has come near the view of its scroller; it stays true.
 *
 * @param {boolean} always draw at once
 * @returns {[{current: Element | null}, boolean]} a reference for the element that stands for the content
 */
export function useNearby(always) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const [near, setNear] = useState(always);
  const end = useRef(/** @type {number | null} */ (null));
  const drawn = near || always;
  useLayoutEffect(() => {
    const box = /** @type {HTMLElement} */ (element.current);
    const scroller = /** @type {Element} */ (box.closest('.scroller'));
    if (drawn) {
      if (end.current === null) return undefined;
      // Otherwise its height would be an estimate until the next frame.
      box.classList.add('whole');
      scroller.scrollTop += box.getBoundingClientRect().bottom - end.current;
      return undefined;
    }
    waiting.set(box, (keepsEnd) => {
      end.current = keepsEnd ? box.getBoundingClientRect().bottom : null;
      setNear(true);
    });
    const observer = observerOf(scroller);
    observer.observe(box);
    return () => observer.unobserve(box);
  }, [drawn]);
  return [element, drawn];
}

/** One observer for each scroller, because each observer costs time at every frame. @param {Element} root */
function observerOf(root) {
  const draws = (/** @type {IntersectionObserverEntry[]} */ entries) => draw(entries, root);
  const observer = observers.get(root) ?? new IntersectionObserver(draws, { root, rootMargin: MARGIN });
  observers.set(root, observer);
  return observer;
}

/** Draw elements in view at once, and the others one per frame, so that scrolling stays smooth. @param {IntersectionObserverEntry[]} entries @param {Element} root */
function draw(entries, root) {
  const { top, bottom } = root.getBoundingClientRect();
  for (const { target, isIntersecting, boundingClientRect: box } of entries) {
    if (!isIntersecting) queue.delete(target);
    else if (box.bottom > top && box.top < bottom) waiting.get(target)?.();
    else queue.add(target);
  }
  if (queue.size) requestAnimationFrame(drawNext);
}

function drawNext() {
  const [first] = queue;
  if (!first) return;
  queue.delete(first);
  waiting.get(first)?.();
  if (queue.size) requestAnimationFrame(drawNext);
}

/**
 * Keep the end in view while the user is there; do not scroll while the user reads elsewhere.
 *
 * @param {{current: Element}} scroller
 * @param {string | null} id the conversation, which is shown from its end; null for the start page, shown from its top
 * @param {string | null} messageId the message to show instead, which also gets the focus, until the user scrolls
 * @param {boolean} isPartial whether earlier content will be added before the first
 * @returns {{away: boolean, toEnd: () => void, onScroll: () => void}} `away`: whether the user has left the end
 */
export function useFollow(scroller, id, messageId = null, isPartial = false) {
  const found = useRef(/** @type {HTMLElement | null} */ (null));
  const atEnd = useRef(true);
  const touched = useRef(false);
  const last = useRef({ top: 0, height: 0 });
  const wasPartial = useRef(isPartial);
  const [away, setAway] = useState(false);
  const toEnd = () => {
    found.current = null;
    atEnd.current = true;
    touched.current = false;
    scroller.current.scrollTop = endOf(scroller.current);
  };
  const onScroll = () => {
    const { scrollTop, scrollHeight } = scroller.current;
    const near = endOf(scroller.current) - scrollTop < NEAR_END_PX;
    // Content moves the end away when it grows, and the view up when it shrinks or when heights that were
    // estimated become known. Therefore only scrolling up counts as leaving the end, and while the height
    // changes only that of a person.
    const { top, height } = last.current;
    const left = scrollTop < top && scrollHeight >= height && (touched.current || scrollHeight === height);
    atEnd.current = near || (atEnd.current && !left);
    last.current = { top: scrollTop, height: scrollHeight };
    setAway(!atEnd.current);
  };
  useLayoutEffect(() => {
    if (id !== null) return toEnd();
    atEnd.current = false;
    scroller.current.scrollTop = 0;
  }, [id]);
  // What the user reads stays in place. The browser itself would keep it only below the top of the content.
  const first = wasPartial.current && !isPartial ? scroller.current?.querySelector('.log > .run') : null;
  wasPartial.current = isPartial;
  const before = first?.getBoundingClientRect().top ?? 0;
  useLayoutEffect(() => {
    if (atEnd.current) toEnd();
    else if (first) {
      scroller.current.scrollTop += first.getBoundingClientRect().top - before;
      // It may be partly in view.
      if (first.previousElementSibling) waiting.get(first.previousElementSibling)?.(true);
    }
  }, [isPartial]);
  useLayoutEffect(() => {
    if (!messageId) return undefined;
    const box = scroller.current;
    const message = /** @type {HTMLElement | null} */ (box.querySelector(`[data-message="${messageId}"]`));
    if (!message) return undefined;
    found.current = message;
    atEnd.current = false;
    message.tabIndex = -1;
    message.focus({ preventScroll: true });
    toMessage(message, box);
    return () => (found.current = null);
  }, [messageId]);
  useLayoutEffect(() => {
    // Never scroll back: the user may read or edit the lower part of a request that does not fit.
    const grown = new ResizeObserver(() => {
      if (found.current) toMessage(found.current, scroller.current);
      else if (atEnd.current && scroller.current.scrollTop < endOf(scroller.current)) toEnd();
    });
    if (scroller.current.firstElementChild) grown.observe(scroller.current.firstElementChild);
    grown.observe(scroller.current);
    const touch = (/** @type {Event} */ event) => {
      if (event.type === 'keydown' && isTyping(/** @type {KeyboardEvent} */ (event))) return;
      touched.current = true;
      found.current = null;
    };
    // The browser itself scrolls to it, and then the runs in view are drawn. The next hit may be elsewhere.
    scroller.current.addEventListener('beforematch', ({ target }) => {
      const run = /** @type {HTMLElement} */ (target).parentElement;
      found.current = run;
      atEnd.current = false;
      setTimeout(() => found.current === run && (found.current = null), HELD_MS);
    });
    // Not only in the scroller: a key scrolls what was last clicked, and some buttons lead to a request.
    for (const name of GESTURES) addEventListener(name, touch, { passive: true });
    return () => {
      grown.disconnect();
      for (const name of GESTURES) removeEventListener(name, touch);
    };
  }, []);
  return { away, toEnd, onScroll };
}

/** Show a message: in the middle, or from its beginning if it does not fit. @param {HTMLElement} message @param {Element} scroller */
function toMessage(message, scroller) {
  message.scrollIntoView({ block: message.offsetHeight > scroller.clientHeight ? 'start' : 'center' });
}

/** The scroll position of the end; of a pending approval request that does not fit, the position of its top. */
function endOf(/** @type {Element} */ scroller) {
  const end = scroller.scrollHeight - scroller.clientHeight;
  const card = scroller.querySelector('.approval.pending');
  if (!card) return end;
  const top = card.getBoundingClientRect().top - scroller.getBoundingClientRect().top + scroller.scrollTop;
  return Math.min(end, Math.max(0, top - CARD_MARGIN_PX));
}

// Paper has no view to come near to.
addEventListener('beforeprint', () => {
  for (const box of document.querySelectorAll('.run.far')) waiting.get(box)?.();
});
