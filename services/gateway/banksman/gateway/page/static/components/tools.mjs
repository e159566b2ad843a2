/** Tool calls: one line in the compact view, a card with arguments and output in the detailed one. */

import { useState } from 'preact/hooks';

import { formatDuration } from '../text.mjs';
import { toolIcon } from './icons.mjs';
import { CopyButton, Exact, Icon, html, memo, useElapsed, useStore } from './ui.mjs';

const STATUS_WORDS = {
  requested: 'Waiting',
  running: 'Running',
  done: 'Done',
  failed: 'Failed',
  rejected: 'Rejected',
  not_executed: 'Not run',
  cancelled: 'Cancelled',
  denied: 'Denied',
  timeout: 'Timed out',
  unknown_outcome: 'Outcome unknown',
};

/** The most important argument of a call, on one line. */
export function summaryOf(call) {
  const { command, path, url } = call.arguments ?? {};
  const text = command ?? path ?? url ?? JSON.stringify(call.arguments ?? {});
  return String(text).split('\n')[0];
}

function statusOf(call) {
  return call.result?.error_kind && STATUS_WORDS[call.result.error_kind] ? call.result.error_kind : call.status;
}

export const ToolCard = memo(function ToolCard({ call, runId }) {
  const [open, setOpen] = useState(false);
  const status = statusOf(call);
  return html`<section class=${`tool ${status}`} role="group" aria-label=${`Tool call ${call.name}`}>
    <button type="button" class="tool-head" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      <${Icon} name=${toolIcon(call.name)} size=${16} />
      <span class="tool-name">${call.name}</span>
      <code class="tool-summary"><${Exact} text=${summaryOf(call)} /></code>
      <${Timing} call=${call} />
      <span class=${`status ${status}`}>${STATUS_WORDS[status]}</span>
      <${Icon} name="chevron" size=${14} />
    </button>
    ${open && html`<div class="tool-body"><${Arguments} call=${call} /><${Output} call=${call} runId=${runId} /></div>`}
    ${!open && call.status === 'running' && call.output && html`<pre class="tool-live">${lastLines(call.output)}</pre>`}
  </section>`;
});

function lastLines(output) {
  return output.trimEnd().split('\n').slice(-6).join('\n');
}

function Timing({ call }) {
  const elapsed = useElapsed(call.startedAt, call.status === 'running');
  if (call.result?.duration_ms) return html`<span class="timing">${formatDuration(call.result.duration_ms)}</span>`;
  return call.status === 'running' && elapsed >= 1000 ? html`<span class="timing">${formatDuration(elapsed)}</span>` : null;
}

function Arguments({ call }) {
  const text = JSON.stringify(call.arguments, null, 2);
  return html`<div class="field">
    <div class="field-head"><span>Arguments${call.edited ? ' (edited by the approver)' : ''}</span><${CopyButton} text=${text} /></div>
    <pre tabindex="0"><${Exact} text=${text} /></pre>
  </div>`;
}

function Output({ call, runId }) {
  if (!call.result) return call.output ? html`<${OutputText} label="Output so far" text=${call.output} />` : null;
  const { exit_code: exitCode, truncated, error_kind: errorKind } = call.result;
  return html`
    ${sections(call.result.content).map(([label, text]) => html`<${OutputText} label=${label} text=${text} />`)}
    <p class="tool-facts">
      ${exitCode !== null && exitCode !== undefined && html`<span>exit code ${exitCode}</span>`}
      ${errorKind && html`<span>${errorKind.replaceAll('_', ' ')}</span>`}
      ${call.runner && html`<span>runner ${call.runner}</span>`}
      ${truncated && html`<${WholeOutput} runId=${runId} callId=${call.id} />`}
    </p>
  `;
}

/** The sections of a result: each text under its name, other values as JSON. */
export function sections(content) {
  if (typeof content === 'string') return [['Output', content]];
  const { success, exit_code: exitCode, error_kind: errorKind, ...rest } = content ?? {};
  const texts = Object.entries(rest).filter(([, value]) => typeof value === 'string' && value !== '');
  const others = Object.fromEntries(Object.entries(rest).filter(([, value]) => typeof value !== 'string' && value !== null));
  const named = texts.map(([key, value]) => [key === 'error' ? 'Error' : key, value]);
  return Object.keys(others).length ? [...named, ['Result', JSON.stringify(others, null, 2)]] : named;
}

function OutputText({ label, text }) {
  return html`<div class="field">
    <div class="field-head"><span>${label}</span><${CopyButton} text=${text} /></div>
    <pre tabindex="0"><${Exact} text=${text} /></pre>
  </div>`;
}

function WholeOutput({ runId, callId }) {
  const store = useStore();
  const download = async () => {
    try {
      saveBlob(await store.api.output(runId, callId), `${callId}.txt`);
    } catch (error) {
      store.toast(error.message);
    }
  };
  return html`<button type="button" class="link" onClick=${download}>The output was truncated: download the complete output</button>`;
}

/** Hand a blob to the browser as a download. */
export function saveBlob(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = Object.assign(document.createElement('a'), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The tools of some calls with their counts: `bash ×2, read_file`. */
export function toolCounts(calls) {
  const counts = new Map();
  for (const call of calls) counts.set(call.name, (counts.get(call.name) ?? 0) + 1);
  return [...counts].map(([name, count]) => (count > 1 ? `${name} ×${count}` : name)).join(', ');
}


const UNSUCCESSFUL = [
  ['rejected', 'rejected'],
  ['not_executed', 'not run'],
  ['cancelled', 'cancelled'],
  ['unknown_outcome', 'with an unknown outcome'],
  ['failed', 'failed'],
];

/** How many calls were rejected, not run or failed, in words. */
export function unsuccessful(calls) {
  const kinds = calls.filter((call) => call.result?.is_error).map((call) => call.result.error_kind);
  const known = new Set(UNSUCCESSFUL.map(([kind]) => kind));
  const named = kinds.map((kind) => (known.has(kind) ? kind : 'failed'));
  return UNSUCCESSFUL.map(([kind, word]) => ({ kind, count: named.filter((name) => name === kind).length, word }))
    .filter(({ count }) => count > 0)
    .map(({ kind, count, word }) => ({ kind, text: `${count} ${word}` }));
}
