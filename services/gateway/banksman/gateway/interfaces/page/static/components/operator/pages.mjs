/** Lists that are read page by page. */

import { useEffect, useRef, useState } from 'preact/hooks';

import { explain } from '../../strings.mjs';

/** @template One, [Next=unknown] @typedef {{items: One[] | null, next: Next | null, error: string | null, readMore: () => void}} Pages */

/**
 * A list from its beginning, and further pages on request. The list is read again from time to time only while
 * no further page is shown, because rows of further pages would move while the user reads them.
 *
 * @template One, [Next=number]
 * @param {(next: Next | null) => Promise<{items: One[], next: Next | null}>} load requests a page by `next` of the previous
 *   page; null for the first page, and at the end
 * @param {{everyMs?: number, of?: unknown}} options `everyMs`: milliseconds between two reads of the first page; without
 *   it, the list is read again only on request. `of`: the subject of the list; another value restarts it
 */
export function usePages(load, { everyMs, of } = {}) {
  /** @typedef {Omit<Pages<One, Next>, 'readMore'>} Shown */
  const [state, setState] = useState(/** @type {Shown} */ ({ items: null, next: null, error: null }));
  const further = useRef(false);
  // Only the result of the last request is shown, because an earlier request may end later.
  const last = useRef(0);
  const show = (/** @type {ReturnType<typeof load>} */ page, /** @type {One[]} */ before) => {
    const request = ++last.current;
    return page.then(
      ({ items, next }) =>
        request === last.current && setState({ items: [...before, ...items], next, error: null }),
      (/** @type {Failure} */ failure) =>
        request === last.current && setState((shown) => ({ ...shown, error: explain(failure) })),
    );
  };
  const read = () => {
    further.current = false;
    return show(load(null), []);
  };
  const readMore = () => {
    further.current = true;
    return show(load(state.next), state.items ?? []);
  };
  /** Read the first page again, unless further pages are shown. */
  const refresh = () => (further.current ? undefined : read());
  useEffect(() => {
    read();
    if (!everyMs) return undefined;
    const timer = setInterval(() => !document.hidden && refresh(), everyMs);
    return () => clearInterval(timer);
  }, [of]);
  return { ...state, read, readMore, refresh };
}
