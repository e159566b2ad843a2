/** Shared by all components: the template tag, the store, memoisation, lazy loading and small controls. */

import { Component, createContext, h } from 'preact';
import { useContext, useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import htm from 'htm';

import { t } from '../strings.mjs';
import { reveal } from '../text.mjs';
import { icon } from './icons.mjs';

/** @type {(strings: TemplateStringsArray, ...values: TemplateValue[]) => import('preact').VNode} */
export const html = /** @type {any} */ (htm.bind(h));
const FAVICON = new URL('../favicon.svg', import.meta.url).href;
const isMac = /Mac|iPhone|iPad/.test(globalThis.navigator?.platform ?? '');
/** The key of commands, as it is written on the keyboard. */
export const COMMAND = isMac ? '⌘' : 'Ctrl';
export const StoreContext = createContext(/** @type {Store | null} */ (null));

export const useStore = () => /** @type {Store} */ (useContext(StoreContext));

/** Render again only if a property changed. @template {object} P @param {(properties: P) => Shown} render */
export function memo(render) {
  return class Memo extends Component {
    shouldComponentUpdate(/** @type {Json} */ next) {
      const keys = new Set([...Object.keys(next), ...Object.keys(this.props)]);
      const before = /** @type {Json} */ (this.props);
      return [...keys].some((key) => next[key] !== before[key]);
    }

    render(/** @type {Json} */ props) {
      return h(/** @type {import('preact').FunctionComponent<Json>} */ (render), props);
    }
  };
}

export function Icon(/** @type {{name: string, size?: number}} */ { name, size = 18 }) {
  return html`<svg class="icon" width=${size} height=${size} viewBox="0 0 24 24" aria-hidden="true">
    <path d=${icon(name)} />
  </svg>`;
}

/**
 * An action in the header of a view, or with `href` a link. A narrow window shows its icon alone.
 *
 * @param {{icon: string, text: string, href?: string} & Record<string, unknown>} properties
 */
export function Action({ icon, text, ...rest }) {
  return html`<${rest.href ? 'a' : 'button'} class="toggle" aria-label=${text} ...${rest}>
    <${Icon} name=${icon} size=${16} /><span>${text}</span>
  <//>`;
}

/**
 * @param {{name: string, label: string, onClick: () => void, pressed?: boolean, disabled?: boolean, size?: number} & Record<string, unknown>} properties
 */
export function IconButton({ name, label, onClick, pressed, disabled, size, ...rest }) {
  return html`<button
    type="button"
    class="icon-button"
    aria-label=${label}
    title=${label}
    aria-pressed=${pressed}
    disabled=${disabled}
    onClick=${onClick}
    ...${rest}>
    <${Icon} name=${name} size=${size} />
  </button>`;
}

/** A button with an icon and its text, or with `href` a link. @param {{name: string, label: string, size?: number} & Record<string, unknown>} properties */
export function TextButton({ name, label, size = 16, class: kind = '', ...rest }) {
  return html`<${rest.href ? 'a' : 'button'}
    type=${rest.href ? undefined : 'button'}
    class=${`button ${kind}`}
    ...${rest}>
    <${Icon} name=${name} size=${size} />${label}
  <//>`;
}

export function Loading() {
  return html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`;
}

/** The button of a view that adds something, or with `href` a link. @param {{label: string} & Record<string, unknown>} properties */
export const AddButton = (properties) => html`<${TextButton} class="primary" name="plus" ...${properties} />`;

/** A button that looks like a link. @param {Record<string, unknown>} properties */
export const LinkButton = ({ class: name = '', ...rest }) =>
  html`<button type="button" class=${`link ${name}`} ...${rest} />`;

/** @param {Record<string, unknown>} properties */
export const SmallButton = ({ class: name = '', ...rest }) =>
  html`<button type="button" class=${`button small ${name}`} ...${rest} />`;

/**
 * A button that picks files: several, or what the attributes `input` of a file input say.
 *
 * @param {{Button: Function, onPicked: (files: File[]) => unknown, input?: object} & Record<string, unknown>} properties
 *   also those of the button
 */
export function FilePicker({ Button, onPicked, input = { multiple: true }, ...button }) {
  const picker = useRef(/** @type {HTMLInputElement | null} */ (null));
  const pick = (/** @type {PageEvent} */ event) => {
    const picked = [...(event.target.files ?? [])];
    // The same file can be picked again.
    event.target.value = '';
    return picked.length && onPicked(picked);
  };
  return html`<${Button} ...${button} onClick=${() => picker.current?.click()} />
    <input ref=${picker} type="file" hidden ...${input} onChange=${pick} />`;
}

/** On a narrow page, the button that shows the list of conversations. */
export function ListButton() {
  const { sidebar } = useStore().navigation;
  const show = () => {
    sidebar.value = true;
    requestAnimationFrame(() =>
      /** @type {HTMLElement | null} */ (document.querySelector('.sidebar .new'))?.focus(),
    );
  };
  return html`<${IconButton}
    name="menu"
    label=${t('sidebar.label')}
    class="icon-button narrow-only"
    onClick=${show} />`;
}

export function CopyButton(
  /** @type {{text: string | (() => string), label?: string}} */ { text, label = t('app.copy') },
) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await copyText(typeof text === 'function' ? text() : text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<button
    type="button"
    class="copy"
    onClick=${copy}
    aria-label=${copied ? t('app.copied') : label}
    title=${label}>
    <${Icon} name=${copied ? 'check' : 'copy'} size=${15} /><span
      >${t(copied ? 'app.copied' : 'app.copy')}</span
    >
  </button>`;
}

/** The clipboard API needs a secure context; on plain http the selection is copied instead. @param {string} text */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement('textarea');
  area.value = text;
  area.className = 'visually-hidden';
  document.body.append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}

/** Words of a script that is written from right to left, with the spaces between them. */
const RIGHT_TO_LEFT =
  /([\p{sc=Arab}\p{sc=Hebr}](?:[\p{sc=Arab}\p{sc=Hebr}\p{M} ]*[\p{sc=Arab}\p{sc=Hebr}\p{M}])?)/u;

/**
 * Show text from left to right, with its hidden characters as marks. Words of other directions are legible, each
 * group at its place in the text.
 *
 * @param {{text: string}} properties
 */
export function Exact({ text }) {
  return html`<bdo dir="ltr"
    >${reveal(text).map((piece) =>
      piece.hidden
        ? html`<span class="hidden-character" title=${t('app.hidden')}>${piece.text}</span>`
        : piece.text
            .split(RIGHT_TO_LEFT)
            .map((part, at) => (at % 2 ? html`<bdi dir="rtl">${part}</bdi>` : part)),
    )}</bdo
  >`;
}

/** Where a dialog begins: not at the button that closes it. */
const FIRST_CONTROL = '.dialog-head ~ * :is(input, select, textarea, button):not([hidden], [disabled])';

/**
 * A modal dialog. The `dialog` element traps the focus and returns it. It opens before the next key press.
 *
 * @param {{title: string, onClose: () => void, children: Shown, wide?: boolean, kind?: string}} properties
 */
export function Dialog({ title, onClose, children, wide, kind = wide ? 'wide' : '' }) {
  const ref = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useLayoutEffect(() => {
    const dialog = /** @type {HTMLDialogElement} */ (ref.current);
    dialog.showModal();
    if (!dialog.querySelector('[autofocus]') && matchMedia('(pointer: fine)').matches)
      /** @type {HTMLElement | null} */ (dialog.querySelector(FIRST_CONTROL))?.focus();
    return () => dialog.close();
  }, []);
  useLayoutEffect(() => {
    const { navigation } = /** @type {any} */ (globalThis);
    // Back leads away from what is open over a view; the page itself may name a conversation that a form created.
    const left = (/** @type {any} */ event) => event.navigationType === 'traverse' && onClose();
    navigation?.addEventListener('navigate', left);
    return () => navigation?.removeEventListener('navigate', left);
  }, [onClose]);
  const isBackdrop = useRef(false);
  // A selection that begins in a field and ends outside of the dialog is no click outside.
  const onPointerDown = (/** @type {{target: unknown}} */ { target }) =>
    (isBackdrop.current = target === ref.current);
  const closeOnBackdrop = (/** @type {{target: unknown}} */ { target }) =>
    isBackdrop.current && target === ref.current && onClose();
  return html`<dialog
    ref=${ref}
    class=${`dialog ${kind}`}
    aria-label=${title}
    onCancel=${(event) => {
      event.preventDefault();
      onClose();
    }}
    onPointerDown=${onPointerDown}
    onClick=${closeOnBackdrop}>
    <div class="dialog-frame">
      <header class="dialog-head">
        <h2>${title}</h2>
        <${IconButton} name="close" label=${t('app.close')} onClick=${onClose} />
      </header>
      ${children}
    </div>
  </dialog>`;
}

/**
 * A button with a menu: arrow keys move, Escape closes and returns the focus.
 *
 * @typedef {{label: string, icon: string, danger?: boolean, action: () => void}} MenuItem
 * @param {{label: string, items: MenuItem[], up?: boolean, children?: Shown}} properties
 */
export function Menu({ label, items, up, children }) {
  const [open, setOpen] = useState(false);
  const root = useRef(/** @type {HTMLElement | null} */ (null));
  const isOutside = (/** @type {EventTarget | null} */ target) =>
    target instanceof Node && !root.current?.contains(target);
  useLayoutEffect(() => {
    if (!open) return undefined;
    itemsOf(root.current)[0]?.focus();
    const outside = (/** @type {PointerEvent} */ event) => isOutside(event.target) && setOpen(false);
    addEventListener('pointerdown', outside);
    return () => removeEventListener('pointerdown', outside);
  }, [open]);
  const close = () => {
    setOpen(false);
    root.current?.querySelector('button')?.focus();
  };
  const onKeyDown = (/** @type {PageEvent} */ event) => {
    if (event.key === 'Escape') return close();
    if (event.key !== 'ArrowDown' && event.key !== 'ArrowUp') return undefined;
    event.preventDefault();
    return moveFocus(root.current, event.key === 'ArrowDown' ? 1 : -1);
  };
  const onFocusOut = (/** @type {FocusEvent} */ event) =>
    event.relatedTarget && isOutside(event.relatedTarget) && setOpen(false);
  return html`<div
    class="menu"
    ref=${root}
    onKeyDown=${open ? onKeyDown : undefined}
    onFocusOut=${onFocusOut}>
    <button
      type="button"
      class=${children ? 'menu-button' : 'icon-button'}
      aria-label=${label}
      title=${label}
      aria-haspopup="menu"
      aria-expanded=${open}
      onClick=${() => setOpen(!open)}>
      ${children ?? html`<${Icon} name="more" />`}
    </button>
    ${
      open &&
      html`<div class=${`menu-list card ${up ? 'up' : ''}`} role="menu">
        ${items.map(
          (item) =>
            html`<button
              type="button"
              role="menuitem"
              class=${item.danger ? 'danger' : ''}
              onClick=${() => (close(), item.action())}>
              <${Icon} name=${item.icon} size=${16} />${item.label}
            </button>`,
        )}
      </div>`
    }
  </div>`;
}

/** @param {HTMLElement | null} root @returns {HTMLElement[]} */
const itemsOf = (root) =>
  [...(root?.querySelectorAll('[role=menuitem]') ?? [])].map((item) => /** @type {HTMLElement} */ (item));

function moveFocus(/** @type {HTMLElement | null} */ root, /** @type {1 | -1} */ step) {
  const items = itemsOf(root);
  const at = items.findIndex((item) => item === document.activeElement);
  items[(at + step + items.length) % items.length]?.focus();
}

/** Whether a key belongs to the text that the user types. @param {KeyboardEvent} event */
export const isTyping = ({ target }) =>
  target instanceof Element && target.matches('input, textarea, select');

export function Mark({ size = 28 }) {
  return html`<img class="mark" src=${FAVICON} width=${size} height=${size} alt="" />`;
}

/**
 * Milliseconds since `from`, updated every second while `running`.
 *
 * @param {string | null | undefined} from
 * @param {boolean} running
 */
export function useElapsed(from, running) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!running) return undefined;
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [running]);
  return from ? Math.max(0, now - Date.parse(from)) : 0;
}

/**
 * A component whose module is loaded when it is first shown. If it is in memory, it is drawn before the next key press.
 *
 * @param {() => Promise<object>} load imports the module
 * @param {string} name the export that is the component
 * @param {Function} Placeholder is shown with the same properties until the module is loaded, and if loading fails
 */
export function lazy(load, name, Placeholder = () => null) {
  /** @type {Function | null} */
  let Loaded = null;
  return function Lazy(/** @type {object} */ properties) {
    const [, setReady] = useState(Loaded !== null);
    useLayoutEffect(() => {
      // The module may have arrived between the drawing of the placeholder and this effect.
      if (Loaded) return void setReady(true);
      let current = true;
      const show = (/** @type {object} */ module) => {
        Loaded = /** @type {Record<string, Function>} */ (module)[name];
        if (current) setReady(true);
      };
      load().then(show, () => {});
      return () => void (current = false);
    }, []);
    const Shown = Loaded ?? Placeholder;
    return html`<${Shown} ...${properties} />`;
  };
}
