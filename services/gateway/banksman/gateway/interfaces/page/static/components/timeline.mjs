/** The conversation: its runs, what happened between them, and messages that are being sent. */

import { Fragment } from 'preact';
import { useEffect, useRef } from 'preact/hooks';

import { runWith } from '../branches.mjs';
import { parts, t } from '../strings.mjs';
import { contentText } from '../text.mjs';
import { AttachedFiles } from './attachments.mjs';
import { Between, Notice, Run } from './run.mjs';
import { useFollow } from './scrolling.mjs';
import { Icon, LinkButton, html, useStore } from './ui.mjs';
import { Welcome } from './welcome.mjs';

export function Timeline() {
  const store = useStore();
  const conversation = store.opened.current.value;
  const sent = store.outbox.entries.value.filter(
    (entry) => entry.conversationId === store.navigation.currentId.value,
  );
  const path = store.opened.path.value;
  const scroller = useRef(/** @type {HTMLElement | null} */ (null));
  const found = useFound(store, conversation);
  const isShown = found && path.some(({ run }) => run === found.run);
  const follow = useFollow(
    /** @type {{current: HTMLElement}} */ (scroller),
    conversation?.id ?? null,
    isShown ? found.message : null,
    Boolean(conversation?.earlier),
  );
  useEffect(() => void (sent.length && follow.toEnd()), [sent.length]);
  const streaming = conversation?.runs.some(
    (run) => !run.finished && run.entries.some((entry) => entry.kind === 'message' && !entry.complete),
  );
  const between = new Set(
    [...(conversation?.cuts ?? []), ...(conversation?.links ?? [])].map(({ after }) => after),
  );
  const isImported = path[0]?.run.imported && !conversation?.earlier;
  const isEmpty = !conversation?.runs.length && !between.size && !sent.length;
  return html`<div class="scroller" ref=${scroller} onScroll=${follow.onScroll} tabindex="-1">
    <div
      class="log"
      role="log"
      aria-live="polite"
      aria-label=${t('timeline.label')}
      aria-busy=${Boolean(streaming)}>
      ${!conversation && !sent.length && html`<${Welcome} />`}
      ${conversation?.error && html`<p class="empty" role="alert">${conversation.error}</p>`}
      ${
        conversation &&
        !conversation.replayed &&
        !conversation.runs.length &&
        html`<p class="empty"><span class="spinner" /> ${t('timeline.loading')}</p>`
      }
      ${
        conversation?.earlier &&
        !conversation.error &&
        path.length > 0 &&
        html`<p class="empty earlier"><span class="spinner" /> ${t('timeline.earlier')}</p>`
      }
      ${conversation?.replayed && !conversation.error && isEmpty && html`<${Unused} id=${conversation.id} />`}
      ${conversation && html`<${Between} conversation=${conversation} after=${null} />`}
      ${isImported && html`<${Notice} tone="info" text=${t('import.notice')} />`}
      ${path.map(
        (place, at) =>
          html`<${Fragment} key=${place.run.id}>
            <${Run}
              run=${place.run}
              parent=${place.parent}
              at=${place.at}
              versions=${at === 0 && conversation?.earlier ? '' : place.versions.join(' ')}
              details=${store.settings.details.value}
              isLast=${at === path.length - 1}
              isFound=${found?.run === place.run} />${
              between.has(place.run.id) &&
              html`<${Between} conversation=${conversation} after=${place.run.id} />`
            }
          <//>`,
      )}
      ${sent.map((entry) => html`<${Outgoing} key=${entry.key} entry=${entry} />`)}
    </div>
    ${
      follow.away &&
      html`<button type="button" class="to-end bar text-s card" onClick=${follow.toEnd}>
        <${Icon} name="down" size=${15} />${t('timeline.latest')}
      </button>`
    }
  </div>`;
}

/**
 * The message that the address names, with its run, whose version is then shown.
 *
 * @param {Store} store
 * @param {Conversation | null} conversation
 */
function useFound(store, conversation) {
  const [message] = store.navigation.route.value.view === 'chat' ? store.navigation.route.value.path : [];
  const run = message && conversation?.replayed ? runWith(conversation, message) : undefined;
  useEffect(() => void (run && store.opened.showRun(run.id)), [message, run?.id]);
  return run ? { message, run } : null;
}

/** A conversation without messages, and the repository from which its workspace starts. @param {{id: string}} properties */
function Unused({ id }) {
  const source = useStore().list.find(id)?.source;
  if (!source) return html`<p class="empty">${t('timeline.empty')}</p>`;
  const place = html`<code>${source.repository}</code>`;
  const words = source.branch
    ? parts('timeline.fromBranch', { place, branch: html`<code>${source.branch}</code>` })
    : parts('timeline.fromRepository', { place });
  return html`<p class="empty">${words} ${t('timeline.fetchedLater')}</p>`;
}

function Outgoing(/** @type {{entry: import('../stores/outbox.mjs').Entry}} */ { entry }) {
  const { outbox } = useStore();
  return html`<article class="turn user">
    <div class=${`bubble ${entry.error ? 'failed' : 'sending soft'}`}>${contentText(entry.content)}</div>
    <${AttachedFiles} files=${entry.files} />
    ${
      entry.error &&
      html`<p class="send-error text-xs" role="alert">
        ${t('timeline.notSent', { reason: entry.error })}
        <${LinkButton} onClick=${() => outbox.resend(entry.key)}>${t('app.tryAgain')}<//>
        <${LinkButton} onClick=${() => outbox.discard(entry.key)}>${t('app.discard')}<//>
      </p>`
    }
  </article>`;
}
