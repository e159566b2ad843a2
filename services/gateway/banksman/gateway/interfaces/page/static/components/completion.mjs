/** The list of completions of the message box. Loaded with the first `/` or `@`. */

import { useEffect, useLayoutEffect, useMemo, useState } from 'preact/hooks';

import { completed, fitting, wantedAt } from '../completion.mjs';
import { t } from '../strings.mjs';
import { categoriesOf } from '../workflow_words.mjs';
import { Icon, html, useStore } from './ui.mjs';

const NOTHING = { kind: null, query: '', from: 0 };

/** @typedef {Item<'mcp.prompts'>} Prompt */
/** @typedef {{name: string, text: string, prompt?: Prompt}} Option */

/**
 * @param {object} properties
 * @param {string} properties.text
 * @param {number} properties.caret
 * @param {{current: HTMLTextAreaElement}} properties.area
 * @param {{current: ((event: KeyboardEvent) => boolean) | null}} properties.keys gets the handler of keys while options are shown
 * @param {(text: string, caret: number) => void} properties.onChosen
 * @param {(prompt: Prompt) => void} properties.onPrompt
 * @param {() => void} properties.onClose
 */
export function Completion({ text, caret, area, keys, onChosen, onPrompt, onClose }) {
  const wanted = useMemo(() => wantedAt(text, caret), [text, caret]) ?? NOTHING;
  const options = useOptions(wanted.kind);
  const [at, setAt] = useState(0);
  const found = useMemo(() => fitting(options, wanted.query), [options, wanted.query]);
  useLayoutEffect(() => setAt(0), [wanted.query]);
  const choose = (/** @type {Option} */ option) => {
    if (option.prompt) return onPrompt(option.prompt);
    const { value, selectionStart } = area.current;
    const next = completed(value, selectionStart, wanted, option.name);
    onChosen(next.text, next.caret);
  };
  keys.current = (event) => {
    if (!found.length) return false;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) setAt((at + step + found.length) % found.length);
    else if (event.key === 'Enter' || event.key === 'Tab') choose(found[at] ?? found[0]);
    else if (event.key === 'Escape') onClose();
    else return false;
    event.preventDefault();
    return true;
  };
  useLayoutEffect(() => () => (keys.current = null), []);
  if (!found.length) return null;
  return html`<ul
    class="completion"
    role="listbox"
    aria-label=${t(/** @type {Key} */ (`completion.${wanted.kind}`))}>
    ${found.map(
      (option, index) =>
        html`<li
          class="bar"
          key=${`${option.prompt?.server ?? ''} ${option.name}`}
          role="option"
          aria-selected=${index === at}
          onPointerDown=${(event) => (event.preventDefault(), choose(option))}>
          <${Icon}
            name=${option.prompt ? 'message' : wanted.kind === 'workflow' ? 'workflow' : 'file'}
            size=${15} /><strong>${option.name}</strong><span>${option.text}</span>
        </li>`,
    )}
  </ul>`;
}

/** The workflows with their parameters and the prompts of servers, or the files of the open conversation. @param {string | null} kind */
function useOptions(kind) {
  const store = useStore();
  const [options, setOptions] = useState(/** @type {Option[]} */ ([]));
  const id = store.navigation.currentId.value;
  useEffect(() => {
    let shown = true;
    setOptions([]);
    const sources =
      kind === 'workflow' ? [workflows(store), prompts(store)] : kind && id ? [files(store, id)] : [];
    for (const source of sources) {
      source.then(
        (found) => shown && setOptions((before) => [...before, ...found]),
        () => {},
      );
    }
    return () => (shown = false);
  }, [kind, id]);
  return options;
}

async function workflows(/** @type {Store} */ store) {
  const items = await categoriesOf(store.api);
  return items
    .flatMap((category) => category.workflows)
    .map((one) => ({
      name: one.name,
      text: [Object.keys(one.parameters_schema?.properties ?? {}).join(' '), one.title || one.description]
        .filter(Boolean)
        .join(' · '),
    }));
}

async function prompts(/** @type {Store} */ store) {
  const { list, navigation, outbox } = store;
  const assistant = navigation.currentId.value
    ? list.find(navigation.currentId.value)?.assistant
    : outbox.assistant.value;
  const items = await store.api.items('mcp.prompts', { assistant_id: assistant ?? 'default' });
  return items.map((prompt) => ({
    name: prompt.name,
    text: [prompt.server, prompt.title || prompt.description].filter(Boolean).join(' · '),
    prompt,
  }));
}

async function files(/** @type {Store} */ store, /** @type {string} */ id) {
  const { items } = await store.api.files(id);
  return items.map(({ path }) => ({ name: path, text: '' }));
}
