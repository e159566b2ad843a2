/** The end of a run in its conversation: what it does now, or how it ended. */

import { activity, outcomeOf } from '../events.mjs';
import { addressOf } from '../router.mjs';
import { t } from '../strings.mjs';
import { formatCost, formatDuration } from '../text.mjs';
import { Sources } from './tools.mjs';
import { CopyButton, Icon, IconButton, SmallButton, html, useElapsed, useStore } from './ui.mjs';
import { VersionChoice } from './versions.mjs';

/** Outcomes after which the same message may well succeed. */
const AGAIN = ['failed', 'timed_out', 'max_iterations'];

/** The button that stops a run. @param {{run: Run}} properties */
export function StopButton({ run }) {
  const { runs } = useStore();
  return html`<${SmallButton} class="stop" disabled=${run.cancelling} onClick=${() => runs.cancel(run.id)}>
    <${Icon} name="stop" size=${14} />${t(run.cancelling ? 'timeline.stopping' : 'timeline.stop')}
  <//>`;
}

/** What an open run does now, with the button that stops it. @param {{run: Run}} properties */
export function Activity({ run }) {
  const { inbox, session } = useStore();
  const elapsed = useElapsed(run.startedAt, run.status === 'running');
  const isGiven = (/** @type {{id: string}} */ { id }) =>
    inbox.state.value.items.some(
      (one) => one.id === id && one.first && one.first.by === session.welcome.value?.user,
    );
  const waiting = run.entries.some(
    (entry) => (entry.kind === 'approval' || entry.kind === 'input') && !entry.resolved,
  );
  return html`<div class=${`activity bar soft text-m ${waiting ? 'waiting' : ''}`} role="status">
    ${
      waiting
        ? html`<${Icon} name="shield" size=${16} />`
        : html`<span class="pulse" aria-hidden="true"><i /><i /><i /></span>`
    }
    <span class="activity-text">${activity(run, isGiven)}</span>
    ${
      elapsed >= 3000 &&
      !waiting &&
      html`<span class="timing muted text-xs" aria-hidden="true">${formatDuration(elapsed)}</span>`
    }
    <${StopButton} run=${run} />
  </div>`;
}

/**
 * How a run ended, and what a user can do with its reply.
 *
 * @param {{run: Run, isLast: boolean, place: import('../branches.mjs').Place | null}} properties `place` is null for a workflow's run
 */
export function Outcome({ run, isLast, place }) {
  const { outbox } = useStore();
  const { finished, prompt } = run;
  const outcome = finished && outcomeOf(finished);
  // The interrupted text is marked, which already states the cancellation.
  const isMarked = run.status === 'cancelled' && endsPartly(run) && !outcome?.text;
  const again = place && prompt && !run.compact && (() => outbox.sendVersion(run.id, prompt.content));
  return html`
    ${
      outcome &&
      !isMarked &&
      html`<div class=${`outcome ${run.status}`} role="note">
        <${Icon} name=${run.status === 'cancelled' ? 'stop' : 'warning'} size=${16} />
        <div>
          <strong>${outcome.title}.</strong>${
            outcome.text && html` <span>${outcome.text}${outcome.detail && '.'}</span>`
          }${outcome.code && html` <code class="soft">${outcome.code}</code>`}
          ${
            outcome.detail &&
            html`<details class="outcome-detail">
              <summary class="soft">${t('outcome.detail')}</summary>
              <p lang="en" dir="auto">${outcome.detail}</p>
            </details>`
          }
        </div>
        ${
          again &&
          AGAIN.includes(run.status) &&
          html`<${SmallButton} onClick=${again}>${t('app.tryAgain')}<//>`
        }
      </div>`
    }
    <${Sources} run=${run} />
    <div class="reply-tools wrap muted text-xs">
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
          onClick=${() => outbox.continueAfter(run.id)} />`
      }
      <a href=${addressOf('runs', run.id)} title=${usageParts(run).join(' · ')}>
        <${Icon} name="info" size=${15} /><span class="visually-hidden">${t('run.open')}</span
        >${formatCost(finished?.usage?.cost_usd)}
      </a>
    </div>
  `;
}

/** Whether the last text of a run was cut off. @param {Run} run */
function endsPartly({ entries }) {
  const last = entries.at(-1);
  return last?.kind === 'message' && Boolean(last.partial);
}

/** What the agent wrote in a run. @param {Run} run */
function textOf({ entries }) {
  return entries
    .flatMap((entry) => (entry.kind === 'message' && entry.role !== 'user' && entry.text ? [entry.text] : []))
    .join('\n\n');
}

function usageParts(/** @type {Run} */ { startedAt, finishedAt, finished }) {
  const usage = finished?.usage;
  const took = startedAt && finishedAt ? formatDuration(Date.parse(finishedAt) - Date.parse(startedAt)) : '';
  const cached = usage?.cached_tokens ? t('usage.cached', { count: usage.cached_tokens }) : '';
  const tokens =
    usage && (usage.input_tokens || usage.output_tokens)
      ? t('usage.tokens', { input: usage.input_tokens, cached, output: usage.output_tokens })
      : '';
  const iterations = finished?.iterations ? t('usage.iterations', { count: finished.iterations }) : '';
  return [finished?.model, iterations, tokens, formatCost(usage?.cost_usd), took].filter(Boolean);
}
