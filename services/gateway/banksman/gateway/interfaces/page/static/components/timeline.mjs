/** The conversation: messages, tool calls, approvals, input requests and outcomes. */

import { useEffect, useRef, useState } from 'preact/hooks';

import { runWith } from '../branches.mjs';
import { activity, outcomeOf } from '../events.mjs';
import { addressOf } from '../router.mjs';
import { known, parts, t, withTexts } from '../strings.mjs';
import { contentText, formatCost, formatDuration, formatWhen } from '../text.mjs';
import { AttachedFiles, MessageContent } from './attachments.mjs';
import { useFollow, useNearby } from './scrolling.mjs';
import { Sources, ToolCard, toolCounts, unsuccessful } from './tools.mjs';
import { CopyButton, Icon, IconButton, html, lazy, memo, useElapsed, useStore } from './ui.mjs';
import { MessageEditor, MessageTools, VersionChoice } from './versions.mjs';
import { Welcome } from './welcome.mjs';

const ApprovalCard = lazy(() => withTexts(import('./approval.mjs'), 'approvals', 'forms'), 'ApprovalCard');
const InputCard = lazy(
  () => withTexts(import('./inputs.mjs'), 'forms', 'approvals', 'workflows'),
  'InputCard',
);
const LinkedWorkflow = lazy(
  () => withTexts(import('./workflows.mjs'), 'workflows', 'forms'),
  'LinkedWorkflow',
);
const SignInNeeded = lazy(() => import('./accounts.mjs'), 'SignInNeeded');
const Markdown = lazy(() => import('./content.mjs'), 'Markdown', PlainText);
const Value = lazy(() => withTexts(import('./value.mjs'), 'forms'), 'Value');

/** Outcomes after which the same message may well succeed. */
const AGAIN = ['failed', 'timed_out', 'max_iterations'];

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
  const follow = useFollow(scroller, conversation?.id ?? null, isShown ? found.message : null);
  useEffect(() => void (sent.length && follow.toEnd()), [sent.length]);
  const streaming = conversation?.runs.some(
    (run) => !run.finished && run.entries.some((entry) => entry.kind === 'message' && !entry.complete),
  );
  const between = new Set(
    [...(conversation?.cuts ?? []), ...(conversation?.links ?? [])].map(({ after }) => after),
  );
  return html`<div class="scroller" ref=${scroller} onScroll=${follow.onScroll} tabindex="-1">
    <div
      class="log"
      role="log"
      aria-live="polite"
      aria-label=${t('timeline.label')}
      aria-busy=${Boolean(streaming)}
    >
      ${!conversation && !sent.length && html`<${Welcome} />`}
      ${conversation?.error && html`<p class="empty" role="alert">${conversation.error}</p>`}
      ${
        conversation &&
        !conversation.replayed &&
        !conversation.runs.length &&
        html`<p class="empty"><span class="spinner" /> ${t('timeline.loading')}</p>`
      }
      ${
        conversation?.replayed &&
        !conversation.error &&
        !conversation.runs.length &&
        !conversation.cuts.length &&
        !conversation.links.length &&
        !sent.length &&
        html`<${Unused} id=${conversation.id} />`
      }
      ${conversation && html`<${Between} conversation=${conversation} after=${null} />`}
      ${path[0]?.run.imported && html`<${Notice} tone="info" text=${t('import.notice')} />`}
      ${path.map(
        (place, at) =>
          html`<${Run}
              key=${place.run.id}
              run=${place.run}
              parent=${place.parent}
              at=${place.at}
              versions=${place.versions.join(' ')}
              details=${store.settings.details.value}
              isLast=${at === path.length - 1}
              isFound=${found?.run === place.run}
            />${
              between.has(place.run.id) &&
              html`<${Between}
                key=${`after ${place.run.id}`}
                conversation=${conversation}
                after=${place.run.id}
              />`
            }`,
      )}
      ${sent.map((entry) => html`<${Outgoing} key=${entry.key} entry=${entry} />`)}
    </div>
    ${
      follow.away &&
      html`<button type="button" class="to-end" onClick=${follow.toEnd}>
        <${Icon} name="down" size=${15} />${t('timeline.latest')}
      </button>`
    }
  </div>`;
}

/** The message that the address names, with its run, whose version is then shown. */
function useFound(store, conversation) {
  const [message] = store.navigation.route.value.view === 'chat' ? store.navigation.route.value.path : [];
  const run = message && conversation?.replayed ? runWith(conversation, message) : undefined;
  useEffect(() => void (run && store.opened.showRun(run.id)), [message, run?.id]);
  return run ? { message, run } : null;
}

/** The events lost after a run, and the workflows started after it; null is the position before the first run. */
export function Between({ conversation, after }) {
  const cuts = conversation.cuts.filter((cut) => cut.after === after);
  const links = conversation.links.filter((link) => link.after === after);
  return html`${cuts.map(({ text }) => html`<${Notice} tone="warning" text=${text} />`)}
  ${links.map(
    (link) =>
      html`<section class="run" key=${link.id}><${LinkedWorkflow} link=${link} Run=${Run} /></section>`,
  )}`;
}

function Notice({ tone, text }) {
  return html`<p class=${`notice ${tone}`} role="note"><${Icon} name="warning" size=${15} />${text}</p>`;
}

/** A conversation without messages, and the repository from which its workspace starts. */
function Unused({ id }) {
  const source = useStore().list.find(id)?.source;
  if (!source) return html`<p class="empty">${t('timeline.empty')}</p>`;
  const place = html`<code>${source.repository}</code>`;
  const words = source.branch
    ? parts('timeline.fromBranch', { place, branch: html`<code>${source.branch}</code>` })
    : parts('timeline.fromRepository', { place });
  return html`<p class="empty">${words} ${t('timeline.fetchedLater')}</p>`;
}

function Outgoing({ entry }) {
  const { outbox } = useStore();
  return html`<article class="turn user">
    <div class=${`bubble ${entry.error ? 'failed' : 'sending'}`}>${contentText(entry.content)}</div>
    <${AttachedFiles} files=${entry.files} />
    ${
      entry.error &&
      html`<p class="send-error" role="alert">
        ${t('timeline.notSent', { reason: entry.error })}
        <button type="button" class="link" onClick=${() => outbox.resend(entry.key)}>
          ${t('app.tryAgain')}
        </button>
        <button type="button" class="link" onClick=${() => outbox.discard(entry.key)}>
          ${t('app.discard')}
        </button>
      </p>`
    }
  </article>`;
}

/** A run. An ended run is an empty box until it comes near the view, except the last run and a found one. */
export const Run = memo(function Run({
  run,
  parent = '',
  at = 1,
  versions = '',
  details,
  isLast = true,
  isFound,
}) {
  const always = isLast || isFound || !run.finished;
  const [box, drawn] = useNearby(always);
  return html`<section
    class=${always ? 'run' : drawn ? 'run settled' : 'run far'}
    data-run=${run.id}
    data-status=${run.status}
    ref=${box}
  >
    ${
      drawn &&
      html`<${RunContent}
        run=${run}
        place=${versions && !run.model?.startsWith('workflow:') ? { parent, at, versions: versions.split(' ') } : null}
        details=${details}
        isLast=${isLast}
      />`
    }
  </section>`;
});

function RunContent({ run, place, details, isLast }) {
  const [expanded, setExpanded] = useState(false);
  const [editing, setEditing] = useState(false);
  const shown = details || expanded;
  return html`${
      run.prompt && editing && html`<${MessageEditor} run=${run} onClose=${() => setEditing(false)} />`
    }
    ${
      run.prompt &&
      !editing &&
      html`<${UserMessage}
        id=${run.prompt.id}
        content=${run.prompt.content}
        at=${run.requestedAt}
        queued=${run.status === 'queued'}
        >${place && html`<${MessageTools} run=${run} place=${place} onEdit=${() => setEditing(true)} />`}<//
      >`
    }
    <div class="run-body">
      ${grouped(run.entries, shown).map(
        (entry) =>
          html`<${Entry}
            key=${`${entry.kind}-${entry.id}`}
            entry=${entry}
            run=${run}
            onExpand=${() => setExpanded(true)}
          />`,
      )}
      ${
        expanded &&
        !details &&
        html`<button type="button" class="link" onClick=${() => setExpanded(false)}>
          ${t('timeline.hideSteps')}
        </button>`
      }
      ${
        run.finished
          ? html`<${Outcome} run=${run} isLast=${isLast} place=${place} />`
          : html`<${Activity} run=${run} />`
      }
    </div>`;
}

/** With details, show every entry; without, merge neighbouring calls into one line. */
function grouped(entries, shown) {
  const visible = entries.filter((entry) => shown || entry.kind !== 'notice' || !entry.detail);
  const list = [];
  for (const entry of visible) {
    const group = list.at(-1);
    if (entry.kind === 'call' && group?.kind === 'calls') group.calls.push(entry);
    else if (entry.kind === 'call') list.push({ kind: 'calls', id: entry.id, calls: [entry], shown });
    else if (entry.kind === 'message' && !entry.text) continue;
    else list.push(entry);
  }
  return list;
}

function thoughtFor({ complete, seconds }) {
  if (!complete) return t('timeline.thinking');
  return t('timeline.thought', { duration: formatDuration(Math.max(1, Math.round(seconds)) * 1000) });
}

function Entry({ entry, run, onExpand }) {
  switch (entry.kind) {
    case 'message':
      return entry.role === 'user'
        ? html`<${UserMessage} id=${entry.id} content=${entry.text} />`
        : html`<${AssistantMessage} entry=${entry} />`;
    case 'reasoning':
      return html`<details class="reasoning">
        <summary><${Icon} name="brain" size=${15} />${thoughtFor(entry)}</summary>
        <p>${entry.text}${entry.more && html`<em> ${t('timeline.reasoningCut')}</em>`}</p>
      </details>`;
    case 'calls':
      return html`<${Calls}
        group=${entry}
        runId=${run.id}
        succeeded=${run.status === 'completed'}
        onExpand=${onExpand}
      />`;
    case 'approval':
      return html`<${ApprovalCard} approval=${entry} />`;
    case 'input':
      return html`<${InputCard} request=${entry} />`;
    case 'workflow':
      return html`<${LinkedWorkflow} link=${entry} Run=${Run} />`;
    case 'changed':
      return html`<${Changed} paths=${entry.paths} more=${entry.more} />`;
    case 'notice':
      return html`<${Notice} tone=${entry.tone} text=${entry.text} />`;
    default:
      return null;
  }
}

function UserMessage({ id, content, at, queued, children }) {
  return html`<article class="turn user" data-message=${id} aria-label=${t('timeline.you')}>
    <${MessageContent} content=${content} />
    <div class="turn-meta">
      ${children}${(queued || at) && html`<span>${queued ? t('timeline.queued') : formatWhen(at)}</span>`}
    </div>
  </article>`;
}

function PlainText({ text }) {
  return html`<div class="markdown"><div class="prose plain">${text}</div></div>`;
}

const AssistantMessage = memo(function AssistantMessage({ entry }) {
  const value = entry.isResult ? parsed(entry.text) : undefined;
  return html`<article
    class="turn assistant"
    aria-label=${t('timeline.agent')}
    data-message=${entry.id}
    data-complete=${entry.complete}
  >
    ${
      value === undefined
        ? html`<${Markdown} text=${entry.text} streaming=${!entry.complete} />`
        : html`<${Value} value=${value} />`
    }
    ${entry.gap && html`<p class="notice info" role="note">${t('timeline.gap')}</p>`}
    ${
      entry.partial &&
      html`<p class="notice info" role="note"><${Icon} name="stop" size=${14} />${partialText(entry)}</p>`
    }
  </article>`;
});

function partialText({ endedBy, unstored }) {
  const text = t(endedBy === 'cancelled' ? 'timeline.stoppedHere' : 'timeline.endsHere');
  return unstored ? `${text} ${t('timeline.unstored')}` : text;
}

/** The object or list that a result contains as JSON; undefined for text. */
function parsed(text) {
  if (!/^\s*[{[]/.test(text)) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Calls that failed before a successful one are shown only with details. */
function Calls({ group, runId, succeeded, onExpand }) {
  const { calls, shown } = group;
  const needs =
    calls.some(({ result }) => result?.content?.sign_in) && html`<${SignInNeeded} calls=${calls} />`;
  if (shown) {
    return html`<div class="tools">
      ${calls.map((call) => html`<${ToolCard} key=${call.id} call=${call} runId=${runId} />`)} ${needs}
    </div>`;
  }
  const marks = succeeded ? [] : unsuccessful(calls);
  // Calls that follow one that waits for a decision wait with it.
  const waits = calls.findIndex((call) => call.requiresApproval && !call.result);
  const running = calls.some(
    (call, at) => call.status === 'running' || (!call.result && (waits < 0 || at < waits)),
  );
  return html`<button type="button" class="calls-line" onClick=${onExpand} aria-expanded="false">
      ${running ? html`<span class="spinner" />` : html`<${Icon} name="chevron" size=${14} />`}
      <span>${t('timeline.calls', { count: calls.length, tools: toolCounts(calls) })}</span>
      ${marks.map(({ kind, text }) => html`<span class=${`status ${kind}`}>${text}</span>`)}
    </button>
    ${needs}`;
}

const MAX_CHANGED_SHOWN = 12;
const CHANGE_SIGNS = { created: '+', modified: '~', deleted: '−' };

function Changed({ paths, more }) {
  const { navigation } = useStore();
  const hidden = Math.max(0, paths.length - MAX_CHANGED_SHOWN) + more;
  return html`<p class="changed">
    <${Icon} name="file" size=${14} />
    ${paths
      .slice(0, MAX_CHANGED_SHOWN)
      .map(
        ({ path, change }) =>
          html`<button
            type="button"
            class=${`chip ${change}`}
            title=${t('timeline.change', { change: known(`timeline.change.${change}`, change), path })}
            onClick=${() => (navigation.panel.value = 'files')}
          >
            <span>${CHANGE_SIGNS[change] ?? ''}</span>${path}
          </button>`,
      )}
    ${hidden > 0 && html`<span class="muted">${t('timeline.changedMore', { count: hidden })}</span>`}
  </p>`;
}

function Activity({ run }) {
  const { inbox, runs, session } = useStore();
  const elapsed = useElapsed(run.startedAt, run.status === 'running');
  const isGiven = ({ id }) =>
    inbox.state.value.items.some(
      (one) => one.id === id && one.first && one.first.by === session.welcome.value?.user,
    );
  const waiting = run.entries.some(
    (entry) => (entry.kind === 'approval' || entry.kind === 'input') && !entry.resolved,
  );
  return html`<div class=${`activity ${waiting ? 'waiting' : ''}`} role="status">
    ${
      waiting
        ? html`<${Icon} name="shield" size=${16} />`
        : html`<span class="pulse" aria-hidden="true"><i /><i /><i /></span>`
    }
    <span class="activity-text">${activity(run, isGiven)}</span>
    ${
      elapsed >= 3000 &&
      !waiting &&
      html`<span class="timing" aria-hidden="true">${formatDuration(elapsed)}</span>`
    }
    <button
      type="button"
      class="button small stop"
      disabled=${run.cancelling}
      onClick=${() => runs.cancel(run.id)}
    >
      <${Icon} name="stop" size=${14} />${t(run.cancelling ? 'timeline.stopping' : 'timeline.stop')}
    </button>
  </div>`;
}

function Outcome({ run, isLast, place }) {
  const { outbox } = useStore();
  const outcome = outcomeOf(run.finished);
  // The interrupted text is marked, which already states the cancellation.
  const isMarked = run.status === 'cancelled' && run.entries.at(-1)?.partial && !outcome.text;
  const again = place && run.prompt && !run.compact && (() => outbox.sendVersion(run.id, run.prompt.content));
  return html`
    ${
      outcome &&
      !isMarked &&
      html`<div class=${`outcome ${run.status}`} role="note">
        <${Icon} name=${run.status === 'cancelled' ? 'stop' : 'warning'} size=${16} />
        <div>
          <strong>${outcome.title}.</strong>${
            outcome.text && html` <span>${outcome.text}</span>`
          }${outcome.code && html` <code>${outcome.code}</code>`}
        </div>
        ${
          again &&
          AGAIN.includes(run.status) &&
          html`<button type="button" class="button small" onClick=${again}>${t('app.tryAgain')}</button>`
        }
      </div>`
    }
    <${Sources} run=${run} />
    <div class="reply-tools">
      ${textOf(run) && html`<${CopyButton} text=${() => textOf(run)} label=${t('timeline.copyMessage')} />`}
      ${
        again &&
        html`<${IconButton} name="repeat" size=${15} label=${t('versions.again')} onClick=${again} />`
      }
      ${place && html`<${VersionChoice} place=${place} />`}
      ${
        again &&
        !isLast &&
        html`<${IconButton}
          name="branch"
          size=${15}
          label=${t('versions.continue')}
          onClick=${() => outbox.continueAfter(run.id)}
        />`
      }
      <a href=${addressOf('runs', run.id)} title=${usageParts(run, run.finished.usage).join(' · ')}>
        <${Icon} name="info" size=${15} /><span class="visually-hidden">${t('run.open')}</span
        >${formatCost(run.finished.usage?.cost_usd)}
      </a>
    </div>
  `;
}

/** What the agent wrote in a run. */
function textOf(run) {
  const written = run.entries.filter(({ kind, role, text }) => kind === 'message' && role !== 'user' && text);
  return written.map(({ text }) => text).join('\n\n');
}

function usageParts(run, usage) {
  const took =
    run.startedAt && run.finishedAt
      ? formatDuration(Date.parse(run.finishedAt) - Date.parse(run.startedAt))
      : '';
  const cached = usage?.cached_tokens ? t('usage.cached', { count: usage.cached_tokens }) : '';
  const tokens =
    usage && (usage.input_tokens || usage.output_tokens)
      ? t('usage.tokens', { input: usage.input_tokens, cached, output: usage.output_tokens })
      : '';
  const iterations = run.finished.iterations ? t('usage.iterations', { count: run.finished.iterations }) : '';
  return [run.finished.model, iterations, tokens, formatCost(usage?.cost_usd), took].filter(Boolean);
}
