/** The message box: Enter sends, Shift+Enter inserts a line break. */

import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

import { openRun, pendingApprovals } from '../events.mjs';
import { parts, t, withTexts } from '../strings.mjs';
import { AttachedFiles, useDroppedFiles } from './attachments.mjs';
import { useRead } from './requests.mjs';
import { FilePicker, Icon, IconButton, LinkButton, html, lazy, useStore } from './ui.mjs';

const Completion = lazy(() => import('./completion.mjs'), 'Completion');
const PromptDialog = lazy(() => withTexts(import('./prompt.mjs'), 'forms', 'workflows'), 'PromptDialog');
const ModelButton = lazy(() => import('./models.mjs'), 'ModelButton');

const MAX_FILES = 10;
/** A longer text becomes a file: a message has at most 256 KiB, and a box with more text is slow. */
const MAX_PASTED_CHARACTERS = 50_000;
/** Matches a word before the caret that may be completed; `completion.mjs` decides. */
const COMPLETABLE = /(?:^\/[\w-]*|(?:^|\s)@[^\s@]*)$/;
/** A message that may start a workflow. */
const COMMAND = /^\/[\w-]+(?=\s|$)/;

export function Composer() {
  const { navigation, opened, outbox, runs, toasts } = useStore();
  const area = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const [mode, setMode] = useState('queue');
  const files = outbox.files.value;
  const setFiles = (/** @type {File[]} */ next) => (outbox.files.value = next);
  const add = (/** @type {File[]} */ more) => setFiles([...outbox.files.value, ...more].slice(0, MAX_FILES));
  const text = outbox.draft.value;
  const dropping = useDroppedFiles(add);
  const keys = useRef(/** @type {((event: KeyboardEvent) => boolean) | null} */ (null));
  const [closedAt, setClosedAt] = useState(/** @type {string | null} */ (null));
  const [prompt, setPrompt] = useState(/** @type {Item<'mcp.prompts'> | null} */ (null));
  const caret = area.current?.selectionStart ?? text.length;
  const completing = text !== closedAt && COMPLETABLE.test(text.slice(0, caret));
  const conversation = opened.current.value;
  const open = conversation ? openRun(conversation) : null;
  useLayoutEffect(() => {
    if (matchMedia('(pointer: fine)').matches) area.current?.focus();
  }, [navigation.currentId.value]);

  /** A command that names no workflow is sent as a message. */
  const sendCommand = () =>
    toasts.attempt(async () => {
      if (!(await runs.showCommand(text.trim()))) outbox.send(text.trim());
      outbox.draft.value = '';
    });
  const send = () => {
    if (!text.trim() && !files.length) return;
    if (COMMAND.test(text) && !files.length) return sendCommand();
    outbox.send(text.trim(), { files, ...(open ? { mode } : {}) });
    outbox.draft.value = '';
    setFiles([]);
  };
  const onKeyDown = (/** @type {PageEvent} */ event) => {
    if (completing && keys.current?.(event)) return;
    if (event.key !== 'Enter' || event.shiftKey) return;
    event.preventDefault();
    send();
  };
  const complete = (/** @type {string} */ next, /** @type {number} */ place) => {
    outbox.draft.value = next;
    setClosedAt(next);
    // The caret is set after the new text is drawn.
    queueMicrotask(() => queueMicrotask(() => area.current?.setSelectionRange(place, place)));
  };
  const insert = (/** @type {string} */ found) => {
    setPrompt(null);
    complete(found, found.length);
    area.current?.focus();
  };
  const onPaste = (/** @type {PageEvent} */ event) => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    const long = event.clipboardData?.getData('text/plain') ?? '';
    if (!pasted.length && long.length > MAX_PASTED_CHARACTERS)
      pasted.push(new File([long], `${t('attach.pasted')}.txt`, { type: 'text/plain' }));
    if (!pasted.length) return;
    event.preventDefault();
    add(pasted);
  };
  const placeholder = dropping ? t('attach.drop') : open ? placeholderFor(mode) : t('composer.placeholder');
  useGrow(area, text || placeholder);
  return html`<form class="composer" onSubmit=${(event) => (event.preventDefault(), send())}>
      <${ApprovalHint} conversation=${conversation} />
      <${ContinuingHint} />
      <${AssistantHint} />
      <div class=${`composer-box ${dropping ? 'dropping' : ''}`}>
        <${AttachedFiles}
          files=${files}
          onRemove=${(/** @type {number} */ at) => setFiles(files.filter((_, other) => other !== at))} />
        ${
          completing &&
          html`<${Completion}
            text=${text}
            caret=${caret}
            area=${area}
            keys=${keys}
            onChosen=${complete}
            onPrompt=${setPrompt}
            onClose=${() => setClosedAt(text)} />`
        }
        <textarea
          id="composer"
          ref=${area}
          rows="1"
          dir="auto"
          placeholder=${placeholder}
          aria-label=${t('composer.label')}
          value=${text}
          onInput=${(event) => (outbox.draft.value = event.target.value)}
          onKeyDown=${onKeyDown}
          onPaste=${onPaste} />
        <div class="composer-row bar">
          <${FilePicker}
            Button=${IconButton}
            name="attach"
            size=${17}
            label=${t('attach.add')}
            onPicked=${add} />
          <button type="button" class="toggle to-workflows" onClick=${() => (runs.form.value = true)}>
            <${Icon} name="workflow" size=${16} /><span>${t('workflow.title')}</span>
          </button>
          <${ModelButton}
            value=${outbox.model.value}
            onChange=${(/** @type {string | null} */ model) => (outbox.model.value = model)} />
          ${open && html`<${ModeChoice} mode=${mode} onMode=${setMode} />`}
          <span class="composer-hint muted text-xs" aria-hidden="true"
            >${parts('composer.enter', { key: html`<kbd>Enter</kbd>` })}</span
          >
          ${
            open && !text.trim() && !files.length
              ? html`<${IconButton}
                  name="stop"
                  label=${t('composer.stop')}
                  class="icon-button send"
                  disabled=${open.cancelling}
                  onClick=${() => runs.cancel(open.id)} />`
              : html`<button
                  class="icon-button send"
                  aria-label=${t('composer.send')}
                  title=${t('composer.send')}
                  disabled=${!text.trim() && !files.length}>
                  <${Icon} name="send" size=${18} />
                </button>`
          }
        </div>
      </div>
    </form>
    ${
      prompt && html`<${PromptDialog} prompt=${prompt} onInsert=${insert} onClose=${() => setPrompt(null)} />`
    }`;
}

function placeholderFor(/** @type {string} */ mode) {
  return t(mode === 'steer' ? 'composer.steerPlaceholder' : 'composer.queuePlaceholder');
}

/** While a run is open, a message is either queued behind it or steers it. @param {{mode: string, onMode: (mode: string) => void}} properties */
function ModeChoice({ mode, onMode }) {
  const option = (/** @type {string} */ value, /** @type {string} */ label, /** @type {string} */ title) =>
    html`<button type="button" aria-pressed=${mode === value} title=${title} onClick=${() => onMode(value)}>
      ${label}
    </button>`;
  return html`<span class="choice" role="group" aria-label=${t('composer.mode')}>
    ${option('queue', t('composer.queue'), t('composer.queueTitle'))}
    ${option('steer', t('composer.steer'), t('composer.steerTitle'))}
  </span>`;
}

/** The assistant of a new conversation. */
function AssistantHint() {
  const { navigation, outbox } = useStore();
  const assistant = outbox.assistant.value;
  if (!assistant || navigation.currentId.value) return null;
  return html`<p class="continuing-hint wrap soft text-s">
    <${Icon} name="assistant" size=${15} /><${AssistantName} assistant=${assistant} />
    <${LinkButton} onClick=${() => (outbox.assistant.value = null)}>${t('assistant.notBeginning')}<//>
  </p>`;
}

/** @param {{assistant: string}} properties its id, which is shown until its name is known */
function AssistantName({ assistant }) {
  const { api } = useStore();
  const { value } = useRead(() => api.call('assistant.read', { assistant_id: assistant }), [assistant]);
  return html`<span>${t('assistant.beginning', { assistant: value?.name || assistant })}</span>`;
}

/** A notice that the next message follows an earlier message. */
function ContinuingHint() {
  const { navigation, outbox } = useStore();
  const continuing = outbox.continuing.value;
  if (!continuing || continuing.conversationId !== navigation.currentId.value) return null;
  return html`<p class="continuing-hint wrap soft text-s">
    <${Icon} name="branch" size=${15} /><span>${t('versions.continuing')}</span>
    <${LinkButton} onClick=${() => (outbox.continuing.value = null)}>${t('versions.notContinuing')}<//>
  </p>`;
}

function ApprovalHint(/** @type {{conversation: Conversation | null}} */ { conversation }) {
  const waiting = conversation ? pendingApprovals(conversation) : [];
  const inView = useCardInView(waiting[0]?.id);
  if (!waiting.length || inView) return null;
  const show = () => {
    const card = /** @type {HTMLElement | null} */ (document.querySelector('.approval.pending'));
    card?.scrollIntoView({ block: 'center', behavior: 'smooth' });
    card?.focus({ preventScroll: true });
  };
  return html`<button type="button" class="approval-hint bar text-s" onClick=${show}>
    <${Icon} name="shield" size=${16} />
    <span>${t('composer.waiting', { count: waiting.length })}</span>
    <strong>${t('composer.review')}</strong>
  </button>`;
}

/** Whether the oldest pending card is in view, which makes the hint unnecessary. @param {string | undefined} id */
function useCardInView(id) {
  const [inView, setInView] = useState(false);
  useEffect(() => {
    setInView(false);
    if (!id) return undefined;
    const seen = new IntersectionObserver(([entry]) => setInView(entry.isIntersecting), {
      rootMargin: '-60px 0px',
    });
    const observe = () => {
      const card = document.querySelector('.approval.pending');
      if (!card) return;
      drawn.disconnect();
      seen.observe(card);
    };
    // When the first request of a visit arrives, the module of the card may still be loading.
    const drawn = new MutationObserver(observe);
    drawn.observe(/** @type {Element} */ (document.querySelector('.log')), {
      childList: true,
      subtree: true,
    });
    observe();
    return () => {
      drawn.disconnect();
      seen.disconnect();
    };
  }, [id]);
  return inView;
}

/** Measuring makes the browser lay out the whole page at each key, so the browser's own means is used where it exists. @param {{current: HTMLElement | null}} area @param {string} text */
function useGrow(area, text) {
  useLayoutEffect(() => {
    const box = area.current;
    if (!box || CSS.supports('field-sizing', 'content')) return;
    box.style.height = 'auto';
    box.style.height = `${box.scrollHeight}px`;
  }, [text]);
}
