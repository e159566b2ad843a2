/** One run of a conversation: its messages, calls, approvals, input requests and changes. */

import { useEffect, useState } from 'preact/hooks';

import { writtenText } from '../attachments.mjs';
import { known, t, withTexts } from '../strings.mjs';
import { formatDuration, formatWhen } from '../text.mjs';
import { FileChip, MessageContent } from './attachments.mjs';
import { Activity, Outcome } from './outcome.mjs';
import { useKept } from './requests.mjs';
import { UNTIL_FOUND, useNearby } from './scrolling.mjs';
import { CommandOutput, ToolCard, toolCounts, unsuccessful } from './tools.mjs';
import { Icon, LinkButton, html, lazy, memo, useStore } from './ui.mjs';
import { MessageEditor, MessageTools } from './versions.mjs';

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

/** A line between the messages. @param {{tone: string, text: string}} properties */
export function Notice({ tone, text }) {
  return html`<p class=${`notice ${tone}`} role="note"><${Icon} name="warning" size=${15} />${text}</p>`;
}

/**
 * The events lost after a run, and the workflows started after it; null is the position before the first run.
 *
 * @param {{conversation: Conversation, after: string | null}} properties
 */
export function Between({ conversation, after }) {
  const cuts = conversation.cuts.filter((cut) => cut.after === after);
  const links = conversation.links.filter((link) => link.after === after);
  return html`${cuts.map(({ text }) => html`<${Notice} tone="warning" text=${text} />`)}
  ${links.map(
    (link) =>
      html`<section class="run" key=${link.id}><${LinkedWorkflow} link=${link} Run=${Run} /></section>`,
  )}`;
}

/** @typedef {import('../branches.mjs').Place} Place */
/** @typedef {{kind: 'calls', id: string, calls: Call[], shown: boolean}} CallGroup neighbouring calls; one by one if `shown` */

/**
 * A run. An ended run is a box with hidden text until it comes near the view, except the last run and a found one.
 *
 * @typedef {object} RunProperties
 * @property {Run} run
 * @property {string} [parent] the place of its version, as in `Place`
 * @property {number} [at]
 * @property {string} [versions] separated by spaces
 * @property {boolean} details
 * @property {boolean} [isLast]
 * @property {boolean} [isFound]
 */
export const Run = memo(function Run(/** @type {RunProperties} */ properties) {
  const { run, parent = '', at = 1, versions = '', details, isLast = true, isFound = false } = properties;
  const always = isLast || isFound || !run.finished;
  const [box, drawn] = useNearby(always);
  const hasVersions = versions && !run.model?.startsWith('workflow:');
  return html`<section
    class=${always ? 'run' : drawn ? 'run settled' : 'run far'}
    data-run=${run.id}
    data-status=${run.status}
    ref=${box}>
    ${
      drawn
        ? html`<${RunContent}
            run=${run}
            place=${hasVersions ? { run, parent, at, versions: versions.split(' ') } : null}
            details=${details}
            isLast=${isLast} />`
        : UNTIL_FOUND && html`<div hidden=${UNTIL_FOUND}>${textOf(run)}</div>`
    }
  </section>`;
});

/** What the browser's search finds of a run that is not drawn. @param {Run} run */
function textOf({ prompt, entries }) {
  const texts = entries.map((entry) => (entry.kind === 'message' ? entry.text : ''));
  return [prompt?.text, ...texts].join('\n');
}

/** @param {{run: Run, place: Place | null, details: boolean, isLast: boolean}} properties */
function RunContent({ run, place, details, isLast }) {
  const [expanded, setExpanded] = useState(false);
  /** @type {ReturnType<typeof useKept<string>>} */
  const [version, setVersion] = useKept(`version ${run.id}`);
  const edit = () => setVersion(writtenText(run.prompt?.content ?? ''));
  const shown = details || expanded;
  const { opened } = useStore();
  const hasCommand =
    !run.finished && run.entries.some((entry) => entry.kind === 'call' && entry.arguments?.command);
  // The gateway sends live output only to clients that request it.
  useEffect(() => (hasCommand ? opened.followOutput() : undefined), [hasCommand]);
  return html`${
      run.prompt &&
      version !== null &&
      html`<${MessageEditor} run=${run} text=${version} onWritten=${setVersion} />`
    }
    ${
      run.prompt &&
      version === null &&
      html`<${UserMessage}
        id=${run.prompt.id}
        content=${run.prompt.content}
        at=${run.requestedAt}
        queued=${run.status === 'queued'}
        >${place && html`<${MessageTools} run=${run} place=${place} onEdit=${edit} />`}<//
      >`
    }
    <div class="run-body">
      ${grouped(run.entries, shown).map(
        (entry) =>
          html`<${Entry}
            key=${`${entry.kind}-${entry.id}`}
            entry=${entry}
            run=${run}
            onExpand=${() => setExpanded(true)} />`,
      )}
      ${
        expanded &&
        !details &&
        html`<${LinkButton} onClick=${() => setExpanded(false)}>${t('timeline.hideSteps')}<//>`
      }
      ${
        run.finished
          ? html`<${Outcome} run=${run} isLast=${isLast} place=${place} />`
          : html`<${Activity} run=${run} />`
      }
    </div>`;
}

/** With details, show every entry; without, merge neighbouring calls into one line. @param {Entry[]} entries @param {boolean} shown */
function grouped(entries, shown) {
  const visible = entries.filter((entry) => shown || entry.kind !== 'notice' || !entry.detail);
  /** @type {(Entry | CallGroup)[]} */
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

function thoughtFor(/** @type {Message} */ { complete, seconds = 0 }) {
  if (!complete) return t('timeline.thinking');
  return t('timeline.thought', { duration: formatDuration(Math.max(1, Math.round(seconds)) * 1000) });
}

/** @param {{entry: Entry | CallGroup, run: Run, onExpand: () => void}} properties */
function Entry({ entry, run, onExpand }) {
  switch (entry.kind) {
    case 'message':
      return entry.role === 'user'
        ? html`<${UserMessage} id=${entry.id} content=${entry.text} />`
        : html`<${AssistantMessage} entry=${entry} />`;
    case 'reasoning':
      return html`<details class="reasoning muted text-s">
        <summary class="bar"><${Icon} name="brain" size=${15} />${thoughtFor(entry)}</summary>
        <p>${entry.text}${entry.more && html`<em> ${t('timeline.reasoningCut')}</em>`}</p>
      </details>`;
    case 'calls':
      return html`<${Calls} group=${entry} run=${run} onExpand=${onExpand} />`;
    case 'approval':
      return html`<${ApprovalCard} approval=${entry} />`;
    case 'input':
      return html`<${InputCard} request=${entry} />`;
    case 'workflow':
      return html`<${LinkedWorkflow} link=${entry} Run=${Run} />`;
    case 'changed':
      return html`<${ChangedFiles} ...${entry} />`;
    case 'notice':
      return html`<${Notice} tone=${entry.tone} text=${entry.text} />`;
    default:
      return null;
  }
}

/** @param {{id: string | null, content: Content, at?: string | null, queued?: boolean, children?: Shown}} properties */
function UserMessage({ id, content, at, queued, children }) {
  return html`<article class="turn user" data-message=${id} aria-label=${t('timeline.you')}>
    <${MessageContent} content=${content} />
    <div class="turn-meta bar muted text-xs">
      ${children}${(queued || at) && html`<span>${queued ? t('timeline.queued') : formatWhen(at)}</span>`}
    </div>
  </article>`;
}

function PlainText(/** @type {{text: string}} */ { text }) {
  return html`<div class="markdown"><div class="prose plain anywhere">${text}</div></div>`;
}

const AssistantMessage = memo(function AssistantMessage(/** @type {{entry: Message}} */ { entry }) {
  const value = entry.isResult ? parsed(entry.text) : undefined;
  return html`<article
    class="turn assistant"
    aria-label=${t('timeline.agent')}
    data-message=${entry.id}
    data-complete=${entry.complete}>
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

function partialText(/** @type {Message} */ { endedBy, unstored }) {
  const text = t(endedBy === 'cancelled' ? 'timeline.stoppedHere' : 'timeline.endsHere');
  return unstored ? `${text} ${t('timeline.unstored')}` : text;
}

/** The object or list that a result contains as JSON; undefined for text. @param {string} text */
function parsed(text) {
  if (!/^\s*[{[]/.test(text)) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/**
 * Calls that failed before a successful one are shown only with details. Of the newest calls of an open run, the
 * output is shown also without.
 *
 * @param {{group: CallGroup, run: Run, onExpand: () => void}} properties
 */
function Calls({ group, run, onExpand }) {
  const { calls, shown } = group;
  const runId = run.id;
  const needs =
    calls.some(({ result }) => result?.content?.sign_in) && html`<${SignInNeeded} calls=${calls} />`;
  if (shown) {
    return html`<div class="tools card">
      ${calls.map((call) => html`<${ToolCard} key=${call.id} call=${call} runId=${runId} />`)} ${needs}
    </div>`;
  }
  const marks = run.status === 'completed' ? [] : unsuccessful(calls);
  const newest = run.finished ? null : run.entries.findLast((entry) => entry.kind === 'call');
  const now = newest && calls.includes(newest);
  // Calls that follow one that waits for a decision wait with it.
  const waits = calls.findIndex((call) => call.requiresApproval && !call.result);
  const running = calls.some(
    (call, at) => call.status === 'running' || (!call.result && (waits < 0 || at < waits)),
  );
  return html`<button
      type="button"
      class="calls-line bar muted text-s"
      onClick=${onExpand}
      aria-expanded="false">
      ${running ? html`<span class="spinner" />` : html`<${Icon} name="chevron" size=${14} />`}
      <span>${t('timeline.calls', { count: calls.length, tools: toolCounts(calls) })}</span>
      ${marks.map(({ kind, text }) => html`<span class=${`status ${kind}`}>${text}</span>`)}
    </button>
    ${
      now &&
      calls.map(
        (call) =>
          (call === newest || call.status === 'running') &&
          html`<${CommandOutput} key=${call.id} call=${call} onShowAll=${onExpand} />`,
      )
    }
    ${needs}`;
}

const MAX_CHANGED_SHOWN = 12;
/** @type {Record<string, string>} */
const CHANGE_SIGNS = { created: '+', modified: '~', deleted: '−' };

function ChangedFiles(/** @type {Changed} */ { paths, more }) {
  const hidden = Math.max(0, paths.length - MAX_CHANGED_SHOWN) + more;
  return html`<p class="changed wrap muted">
    <${Icon} name="file" size=${14} />
    ${paths
      .slice(0, MAX_CHANGED_SHOWN)
      .map(
        ({ path, change }) =>
          html`<${FileChip}
            class=${change}
            title=${t('timeline.change', { change: known(`timeline.change.${change}`, change), path })}>
            <span>${CHANGE_SIGNS[change] ?? ''}</span>${path}
          <//>`,
      )}
    ${hidden > 0 && html`<span class="muted">${t('timeline.changedMore', { count: hidden })}</span>`}
  </p>`;
}
