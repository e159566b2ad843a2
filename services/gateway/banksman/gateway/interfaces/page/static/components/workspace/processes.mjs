/** The commands and sessions of a conversation that outlive their calls: state, output and a button to stop each. */

import { useState } from 'preact/hooks';

import { addressOf } from '../../router.mjs';
import { t } from '../../strings.mjs';
import { lastState } from '../../terminal.mjs';
import { formatMoment } from '../../text.mjs';
import { usePages } from '../operator/pages.mjs';
import { FormError, Reading, useAction, useRead } from '../requests.mjs';
import { OutputText } from '../tools.mjs';
import { Exact, Icon, Loading, SmallButton, html, useStore } from '../ui.mjs';

const REFRESH_MS = 3_000;

/** @param {{id: string}} properties the id of the conversation */
export function Processes({ id }) {
  const { api, toasts } = useStore();
  const { items, error, refresh } = usePages(() => api.call('process.list', { conversation_id: id }), {
    everyMs: REFRESH_MS,
    of: id,
  });
  const stop = (/** @type {Item<'process.list'>} */ process) =>
    toasts.attempt(() =>
      api.call('process.stop', { conversation_id: id, process_id: process.id }, {}).then(refresh),
    );
  return html`<${FormError} error=${error} /> ${!items && !error && html`<${Loading} />`}
    ${items?.length === 0 && html`<p class="empty">${t('processes.empty')}</p>`}
    ${
      items &&
      items.length > 0 &&
      html`<ul class="file-changes" aria-label=${t('processes.label')}>
        ${items
          .toReversed()
          .map(
            (one) =>
              html`<li key=${one.id}><${Process} id=${id} process=${one} onStop=${() => stop(one)} /></li>`,
          )}
      </ul>`
    }`;
}

/** @param {{id: string, process: Item<'process.list'>, onStop: () => Promise<void>}} properties */
function Process({ id, process, onStop }) {
  const [open, setOpen] = useState(false);
  const { busy, run } = useAction();
  const running = process.status === 'running';
  return html`<details class="folded" onToggle=${(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span class=${`status ${stateOf(process)}`}>${stateText(process)}</span>
        <code><${Exact} text=${process.command} /></code>
      </summary>
      ${open && html`<${Output} id=${id} process=${process} />`}
    </details>
    <p class="tool-facts muted text-xs">
      ${
        process.started_at &&
        html`<span>${t('processes.since', { time: formatMoment(process.started_at) })}</span>`
      }
      ${process.session && html`<span>${t('processes.session', { name: process.session })}</span>`}
      ${process.reason && html`<span><${Exact} text=${process.reason} /></span>`}
      ${process.run_id && html`<a href=${addressOf('runs', process.run_id)}>${t('processes.run')}</a>`}
      ${
        running &&
        html`<${SmallButton}
          class="stop"
          disabled=${busy}
          aria-label=${t('processes.stop', { command: process.command })}
          onClick=${() => run(onStop)}>
          <${Icon} name="stop" size=${14} />${t(busy ? 'timeline.stopping' : 'timeline.stop')}
        <//>`
      }
    </p>`;
}

function stateOf(/** @type {Item<'process.list'>} */ { status, exit_code: code }) {
  if (status === 'running') return 'running';
  return code === 0 ? 'done' : 'failed';
}

function stateText(/** @type {Item<'process.list'>} */ { status, exit_code: code }) {
  if (status === 'running') return t('tool.status.running');
  return code === null ? t('processes.ended') : t('processes.endedWith', { code: String(code) });
}

/**
 * The last part of the output, which is read again after each change.
 *
 * @param {{id: string, process: Item<'process.list'>}} properties
 */
function Output({ id, process }) {
  const { api } = useStore();
  const read = useRead(
    () => api.call('process.read', { conversation_id: id, process_id: process.id }),
    [process.output_bytes, process.status],
  );
  const part = read.value;
  if (read.error || !part) return html`<${Reading} of=${read} />`;
  if (!part.output) return html`<p class="muted">${t('processes.noOutput')}</p>`;
  return html`${part.start > 0 && html`<p class="muted">${t('processes.earlier')}</p>`}
    <${OutputText} label=${t('tool.output')} text=${lastState(part.output)} />`;
}
