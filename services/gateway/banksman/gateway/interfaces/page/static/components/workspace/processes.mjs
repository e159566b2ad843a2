/** The commands and sessions of a conversation that outlive their calls: state, output and a button to stop each. */

import { useEffect, useState } from 'preact/hooks';

import { addressOf } from '../../router.mjs';
import { explain, t } from '../../strings.mjs';
import { lastState } from '../../terminal.mjs';
import { formatMoment } from '../../text.mjs';
import { usePages } from '../operator/pages.mjs';
import { OutputText } from '../tools.mjs';
import { Exact, Icon, html, useStore } from '../ui.mjs';

const REFRESH_MS = 3_000;

/** @param {{id: string}} properties the id of the conversation */
export function Processes({ id }) {
  const store = useStore();
  const { items, error, refresh } = usePages(() => store.api.processes(id), { everyMs: REFRESH_MS, of: id });
  const stop = (process) =>
    store.api.stopProcess(id, process.id).then(refresh, (failure) => store.toast(explain(failure)));
  return html`${error && html`<p class="form-error" role="alert">${error}</p>`}
  ${!items && !error && html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`}
  ${items?.length === 0 && html`<p class="empty">${t('processes.empty')}</p>`}
  ${
    items?.length > 0 &&
    html`<ul class="file-changes" aria-label=${t('processes.label')}>
      ${items.toReversed().map((one) => html`<li key=${one.id}><${Process} id=${id} process=${one} onStop=${() => stop(one)} /></li>`)}
    </ul>`
  }`;
}

/** @param {{id: string, process: Item<'process.list'>, onStop: () => void}} properties */
function Process({ id, process, onStop }) {
  const [open, setOpen] = useState(false);
  const [stopping, setStopping] = useState(false);
  const running = process.status === 'running';
  const stop = () => {
    setStopping(true);
    return onStop().finally(() => setStopping(false));
  };
  return html`<details class="folded" onToggle=${(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span class=${`status ${stateOf(process)}`}>${stateText(process)}</span>
        <code><${Exact} text=${process.command} /></code>
      </summary>
      ${open && html`<${Output} id=${id} process=${process} />`}
    </details>
    <p class="tool-facts">
      ${process.started_at && html`<span>${t('processes.since', { time: formatMoment(process.started_at) })}</span>`}
      ${process.session && html`<span>${t('processes.session', { name: process.session })}</span>`}
      ${process.reason && html`<span><${Exact} text=${process.reason} /></span>`}
      ${process.run_id && html`<a href=${addressOf('runs', process.run_id)}>${t('processes.run')}</a>`}
      ${
        running &&
        html`<button
          type="button"
          class="button small stop"
          disabled=${stopping}
          aria-label=${t('processes.stop', { command: process.command })}
          onClick=${stop}
        >
          <${Icon} name="stop" size=${14} />${t(stopping ? 'timeline.stopping' : 'timeline.stop')}
        </button>`
      }
    </p>`;
}

function stateOf(/** @type {{status: string, exit_code: string}} */ { status, exit_code: code }) {
  if (status === 'running') return 'running';
  return code === 0 ? 'done' : 'failed';
}

function stateText(/** @type {{status: string, exit_code: string}} */ { status, exit_code: code }) {
  if (status === 'running') return t('processes.running');
  return code === null ? t('processes.ended') : t('processes.endedWith', { code: String(code) });
}

/**
 * The last part of the output, which is read again after each change.
 *
 * @param {{id: string, process: Item<'process.list'>}} properties
 */
function Output({ id, process }) {
  const store = useStore();
  const [part, setPart] = useState(/** @type {Replies['process.read'] | null} */ (null));
  const [error, setError] = useState(/** @type {string | null} */ (null));
  useEffect(() => {
    let current = true;
    store.api.processOutput(id, process.id).then(
      (read) => current && (setPart(read), setError(null)),
      (failure) => current && setError(explain(failure)),
    );
    return () => (current = false);
  }, [process.output_bytes, process.status]);
  if (error) return html`<p class="form-error" role="alert">${error}</p>`;
  if (!part) return html`<p class="empty"><span class="spinner" /> ${t('app.loading')}</p>`;
  if (!part.output) return html`<p class="muted">${t('processes.noOutput')}</p>`;
  return html`${part.start > 0 && html`<p class="muted">${t('processes.earlier')}</p>`}
    <${OutputText} label=${t('tool.output')} text=${lastState(part.output)} />`;
}
