/** Lists that are read page by page. */

import { useEffect, useRef, useState } from 'preact/hooks';

import { explain } from '../../strings.mjs';

/**
 * A list from its beginning, and further pages on request. While only the first page is shown, it is read again from
 * time to time: a list that grew under its reader would move.
 *
 * @param {(next: unknown) => Promise<{items: object[], next: unknown}>} load requests a page by `next` of the one before;
 *   null for the first page, and at the end
 * @param {{everyMs?: number, of?: unknown}} options `everyMs`: milliseconds between two reads of the first page; without
 *   it, the list is read again on request alone. `of`: what is listed; another value begins the list again
 */
export function usePages(load, { everyMs, of } = {}) {
  const [state, setState] = useState({ items: null, next: null, error: null });
  const further = useRef(false);
  // The last request alone is shown: an earlier one may end after it.
  const last = useRef(0);
  const show = (page, before) => {
    const request = ++last.current;
    return page.then(
      ({ items, next }) => request === last.current && setState({ items: [...before, ...items], next, error: null }),
      (failure) => request === last.current && setState((shown) => ({ ...shown, error: explain(failure) })),
    );
  };
  const read = () => {
    further.current = false;
    return show(load(null), []);
  };
  const readMore = () => {
    further.current = true;
    return show(load(state.next), state.items);
  };
  /** Read the first page again, unless others are shown below it. */
  const refresh = () => (further.current ? undefined : read());
  useEffect(() => {
    read();
    if (!everyMs) return undefined;
    const timer = setInterval(() => !document.hidden && refresh(), everyMs);
    return () => clearInterval(timer);
  }, [of]);
  return { ...state, read, readMore, refresh };
}
