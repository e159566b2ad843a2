/** A view besides the conversation: its module is loaded when it is first opened. */

import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

import { VIEWS, addressOf, tabsOf } from '../router.mjs';
import { t } from '../strings.mjs';
import { ConnectionBanner } from './notices.mjs';
import { LinkButton, ListButton, Loading, html, useStore } from './ui.mjs';

const loaded = new Map();

/** The view of an address. @param {{name: string, path: string[]}} properties */
export function LazyView({ name, path }) {
  const [attempt, setAttempt] = useState(0);
  const [failed, setFailed] = useState(false);
  const Component = loaded.get(name);
  useEffect(() => {
    if (loaded.has(name)) return undefined;
    let current = true;
    setFailed(false);
    VIEWS[name].load().then(
      (module) => {
        loaded.set(name, module.default);
        if (current) setAttempt(attempt + 1);
      },
      () => current && setFailed(true),
    );
    return () => (current = false);
  }, [name, attempt]);
  if (Component) return html`<${Component} path=${path} />`;
  return html`<${Frame} title=${t(VIEWS[name].title)}>
    ${
      failed
        ? html`<p class="empty" role="alert">
            ${t('app.retry')}
            <${LinkButton} onClick=${() => setAttempt(attempt + 1)}>${t('app.tryAgain')}<//>
          </p>`
        : html`<${Loading} />`
    }
  <//>`;
}

/**
 * The frame of a view: its heading, which gets the focus, actions beside it, and a body that scrolls.
 *
 * @param {{title: string, actions?: Shown, children: Shown}} properties
 */
export function Frame({ title, actions, children }) {
  const heading = useRef(/** @type {HTMLElement | null} */ (null));
  useLayoutEffect(() => {
    heading.current?.focus({ preventScroll: true });
  }, [title]);
  return html`<header class="header bar">
      <${ListButton} />
      <h1 id="title" class="grow" tabindex="-1" ref=${heading}>${title}</h1>
      <div class="header-actions bar">${actions}</div>
    </header>
    <${Tabs} />
    <${ConnectionBanner} />
    <div class="scroller" tabindex="-1"><div class="view">${children}</div></div>`;
}

/** The views that are tabs of one page with the open one. */
function Tabs() {
  const { navigation, session } = useStore();
  const { view } = navigation.route.value;
  const { group } = VIEWS[view];
  const names = group ? tabsOf(group, session.welcome.value?.rights) : [];
  const tabs = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    tabs.current?.querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'center' });
  }, [view]);
  return (
    names.length > 1 &&
    html`<nav class="tabs" ref=${tabs} aria-label=${t(/** @type {Key} */ (`sidebar.${group}`))}>
      ${names.map(
        (name) =>
          html`<a
            class="soft text-m"
            href=${addressOf(name)}
            aria-current=${name === view ? 'page' : undefined}
            >${t(VIEWS[name].tab ?? VIEWS[name].title)}</a
          >`,
      )}
    </nav>`
  );
}
