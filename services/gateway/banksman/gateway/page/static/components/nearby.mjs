/** Content that is drawn once it comes near the view: a conversation of thousands of messages costs what is read. */

import { useLayoutEffect, useRef, useState } from 'preact/hooks';

/** Distance from the view, in its own heights, at which content is drawn: a fast scroll does not outrun it. */
const MARGIN = '200% 0px';

const observers = new WeakMap();
const waiting = new WeakMap();
const queue = new Set();

/**
 * True once the element has come near the view of its scroller; it stays true.
 *
 * @param {boolean} always draw at once
 * @returns {[{current: Element | null}, boolean]} a reference for the element that stands for the content
 */
export function useNearby(always) {
  const element = useRef(null);
  const [near, setNear] = useState(always);
  const drawn = near || always;
  useLayoutEffect(() => {
    if (drawn) return undefined;
    const box = element.current;
    waiting.set(box, () => setNear(true));
    const observer = observerOf(box.closest('.scroller'));
    observer.observe(box);
    return () => observer.unobserve(box);
  }, [drawn]);
  return [element, drawn];
}

/** One observer for each scroller, as each costs time at every frame. */
function observerOf(root) {
  if (!observers.has(root)) observers.set(root, new IntersectionObserver(draw, { root, rootMargin: MARGIN }));
  return observers.get(root);
}

/** Draw what is in view at once, and the rest one at each frame, so that scrolling stays smooth. */
function draw(entries, { root }) {
  const { top, bottom } = root.getBoundingClientRect();
  for (const { target, isIntersecting, boundingClientRect: box } of entries) {
    if (!isIntersecting) queue.delete(target);
    else if (box.bottom > top && box.top < bottom) waiting.get(target)();
    else queue.add(target);
  }
  if (queue.size) requestAnimationFrame(drawNext);
}

function drawNext() {
  const [first] = queue;
  if (!first) return;
  queue.delete(first);
  waiting.get(first)();
  if (queue.size) requestAnimationFrame(drawNext);
}
