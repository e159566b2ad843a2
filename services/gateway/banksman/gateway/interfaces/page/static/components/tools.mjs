/** Tool calls: one line in the compact view, a card with arguments and output in the detailed one. */

import { useState } from 'preact/hooks';

import { known, t } from '../strings.mjs';
import { coloured, lastState } from '../terminal.mjs';
import { cutLines, formatDuration } from '../text.mjs';
import { toolIcon } from './icons.mjs';
import { CopyButton, Exact, Icon, LinkButton, html, memo, useElapsed, useStore } from './ui.mjs';

const MAX_SUMMARY_CHARACTERS = 500;

/** The most important argument of a call, on one line. @param {Call} call */
export function summaryOf(call) {
  const { command, path, url, query } = call.arguments ?? {};
  const text = command ?? path ?? url ?? query ?? JSON.stringify(call.arguments ?? {});
  return String(text).slice(0, MAX_SUMMARY_CHARACTERS).split('\n')[0];
}

function statusOf(/** @type {Call} */ call) {
  const kind = call.result?.error_kind;
  return kind && known(`tool.status.${kind}`, null) ? kind : call.status;
}

export const ToolCard = memo(function ToolCard(/** @type {{call: Call, runId: string}} */ { call, runId }) {
  const [open, setOpen] = useState(false);
  const status = statusOf(call);
  return html`<section
    class=${`tool ${status}`}
    role="group"
    aria-label=${t('tool.label', { name: call.name })}>
    <button
      type="button"
      class="tool-head bar soft text-s"
      aria-expanded=${open}
      onClick=${() => setOpen(!open)}>
      <${Icon} name=${toolIcon(call.name)} size=${16} />
      <span class="tool-name"><${Exact} text=${call.name} /></span>
      <code class="tool-summary grow muted"><${Exact} text=${summaryOf(call)} /></code>
      <${Timing} call=${call} />
      <span class=${`status ${status}`}>${known(`tool.status.${status}`, status)}</span>
      <${Icon} name="chevron" size=${14} />
    </button>
    ${
      open &&
      html`<div class="tool-body">
        <${Arguments} call=${call} /><${Output} call=${call} runId=${runId} />
      </div>`
    }
    ${!open && html`<${CommandOutput} call=${call} onShowAll=${() => setOpen(true)} />`}
  </section>`;
});

/** The beginning of the output of a command; while it runs, the newest lines. @param {{call: Call, onShowAll: () => void}} properties */
export function CommandOutput({ call, onShowAll }) {
  if (!call.arguments?.command) return null;
  if (call.status === 'running')
    return call.output && html`<pre class="tool-live">${lastLines(call.output)}</pre>`;
  return call.result && html`<${FirstLines} call=${call} onShowAll=${onShowAll} />`;
}

const FIRST_LINES = 8;

/** The beginning of the output of a command. @param {{call: any, onShowAll: () => void}} properties */
function FirstLines({ call, onShowAll }) {
  const output = textsOf(call.result.content)
    .map(([, text]) => text.trimEnd())
    .join('\n');
  const lines = lastState(output).split('\n');
  if (!output) return null;
  const first = cutLines(lines.slice(0, FIRST_LINES).join('\n'));
  return html`<pre class="tool-live">
${coloured(first).map(({ text, style }) => html`<span class=${style}><${Exact} text=${text} /></span>`)}</pre>
    ${
      lines.length > FIRST_LINES &&
      html`<${LinkButton} onClick=${onShowAll}>${t('tool.showAll', { count: lines.length })}<//>`
    }`;
}

function lastLines(/** @type {string} */ output) {
  const lines = output.trimEnd().split('\n').slice(-FIRST_LINES).join('\n');
  return coloured(cutLines(lastState(lines)))
    .map(({ text }) => text)
    .join('');
}

function Timing(/** @type {{call: Call}} */ { call }) {
  const elapsed = useElapsed(call.startedAt, call.status === 'running');
  if (call.result?.duration_ms)
    return html`<span class="timing muted text-xs">${formatDuration(call.result.duration_ms)}</span>`;
  return call.status === 'running' && elapsed >= 1000
    ? html`<span class="timing muted text-xs">${formatDuration(elapsed)}</span>`
    : null;
}

function Arguments(/** @type {{call: Call}} */ { call }) {
  const text = JSON.stringify(call.arguments, null, 2);
  return html`<div class="field">
    <div class="field-head muted text-xs">
      <span>${t(call.edited ? 'tool.argumentsEdited' : 'tool.arguments')}</span><${CopyButton} text=${text} />
    </div>
    <pre tabindex="0"><${Exact} text=${cutLines(text)} /></pre>
  </div>`;
}

function Output(/** @type {{call: Call, runId: string}} */ { call, runId }) {
  if (!call.result)
    return call.output
      ? html`<${OutputText} label=${t('tool.outputSoFar')} text=${lastState(call.output)} />`
      : null;
  const { exit_code: exitCode, truncated, output_ref: reference, error_kind: errorKind } = call.result;
  const found = foundBy(call);
  return html`
    ${
      found.length > 0
        ? html`<${FoundPages} pages=${found} />`
        : sections(call.result.content).map(
            ([label, text]) => html`<${OutputText} label=${label} text=${text} />`,
          )
    }
    <p class="tool-facts muted text-xs">
      ${
        exitCode !== null &&
        exitCode !== undefined &&
        html`<span>${t('tool.exitCode', { code: String(exitCode) })}</span>`
      }
      ${
        errorKind &&
        !call.result.content?.sign_in &&
        html`<span>${known(`tool.kind.${errorKind}`, errorKind.replaceAll('_', ' '))}</span>`
      }
      ${call.runner && html`<span>${t('tool.runner', { runner: call.runner })}</span>`}
      ${truncated && reference && html`<${WholeOutput} runId=${runId} callId=${call.id} />`}
    </p>
  `;
}

/** The texts of a result by their names. @param {Json | string} content @returns {[string, string][]} */
function textsOf(content) {
  if (typeof content === 'string') return [[t('tool.output'), content]];
  return Object.entries(content ?? {}).flatMap(([key, value]) =>
    typeof value === 'string' && value && key !== 'error_kind'
      ? [[key === 'error' ? t('tool.error') : key, value]]
      : [],
  );
}

/** The sections of a result: its texts, and its other values as JSON. @param {Json | string} content */
function sections(content) {
  const { success, exit_code: exitCode, sign_in: signIn, ...rest } = Object(content);
  const others = Object.entries(rest).filter(([, value]) => typeof value !== 'string' && value !== null);
  const texts = textsOf(content);
  if (typeof content === 'string' || !others.length) return texts;
  return [...texts, [t('tool.result'), JSON.stringify(Object.fromEntries(others), null, 2)]];
}

export function OutputText(/** @type {{label: string, text: string}} */ { label, text }) {
  return html`<div class="field">
    <div class="field-head muted text-xs"><span>${label}</span><${CopyButton} text=${text} /></div>
    <pre tabindex="0">
${coloured(cutLines(text)).map(
        (piece) => html`<span class=${piece.style}><${Exact} text=${piece.text} /></span>`,
      )}</pre>
  </div>`;
}

function WholeOutput(/** @type {{runId: string, callId: string}} */ { runId, callId }) {
  const { api, toasts } = useStore();
  const download = () =>
    toasts.attempt(async () => saveBlob(await api.output(runId, callId), `${callId}.txt`));
  return html`<${LinkButton} onClick=${download}>${t('tool.truncated')}<//>`;
}

/** Download a blob. @param {Blob} blob @param {string} name */
export function saveBlob(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = Object.assign(document.createElement('a'), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The pages that a run has read, each once, in the order of the reads. @param {Run} run */
export function sourcesOf(run) {
  const read = run.entries
    .filter((entry) => entry.kind === 'call')
    .filter((call) => call.name === 'web_fetch' && call.result && !call.result.is_error);
  return [...new Set(read.map((call) => String(call.arguments.url ?? '')))].filter((url) =>
    /^https?:\/\//i.test(url),
  );
}

/** The pages that a search has found: title, address, snippet and, where it is known, the day. @param {Call} call */
function foundBy(call) {
  const listed = call.name === 'web_search' && !call.result?.is_error ? call.result?.content?.results : null;
  return (Array.isArray(listed) ? listed : []).filter((page) => /^https?:\/\//i.test(page?.url ?? ''));
}

/** The pages that the searches of a run have found, each once, without those that it has read. @param {Run} run */
export function foundOf(run) {
  const read = new Set(sourcesOf(run));
  const found = run.entries.filter((entry) => entry.kind === 'call').flatMap(foundBy);
  return [...new Map(found.map((page) => [page.url, page])).values()].filter((page) => !read.has(page.url));
}

/**
 * Links to the pages that a run has read, and to those that its searches have found.
 *
 * @param {{run: Run}} properties
 */
export function Sources({ run }) {
  const urls = sourcesOf(run);
  const found = foundOf(run);
  return html`${
    urls.length > 0 &&
    html`<p class="sources wrap muted text-s">
      <span>${t('timeline.sources')}</span>${urls.map(
        (url) =>
          html`<a key=${url} href=${url} title=${url} target="_blank" rel="noreferrer noopener"
            ><${Icon} name="globe" size=${13} /><${Exact} text=${hostOf(url)}
          /></a>`,
      )}
    </p>`
  }
  ${
    found.length > 0 &&
    html`<details class="found-pages">
      <summary class="muted text-s">${t('timeline.found', { count: found.length })}</summary>
      <${FoundPages} pages=${found} />
    </details>`
  }`;
}

function FoundPages(
  /** @type {{pages: {title?: string, url: string, snippet?: string, date?: string}[]}} */ { pages },
) {
  return html`<ol class="found stack text-s">
    ${pages.map(
      ({ title, url, snippet, date }) =>
        html`<li key=${url}>
          <a class="anywhere" href=${url} title=${url} target="_blank" rel="noreferrer noopener"
            ><${Exact} text=${title || url}
          /></a>
          <span class="muted"
            ><${Exact} text=${hostOf(url)} />${date && html` · <${Exact} text=${date} />`}</span
          >
          <p class="muted anywhere" dir="auto"><${Exact} text=${snippet ?? ''} /></p>
        </li>`,
    )}
  </ol>`;
}

function hostOf(/** @type {string} */ url) {
  try {
    return new URL(url).host;
  } catch {
    return url;
  }
}

/** The tools of some calls with their counts: `bash ×2, read_file`. @param {Call[]} calls */
export function toolCounts(calls) {
  const counts = new Map();
  for (const call of calls) counts.set(call.name, (counts.get(call.name) ?? 0) + 1);
  return [...counts].map(([name, count]) => (count > 1 ? `${name} ×${count}` : name)).join(', ');
}

const UNSUCCESSFUL = ['rejected', 'not_executed', 'cancelled', 'unknown_outcome', 'failed'];

/** How many calls were rejected, not run or failed, in words. @param {Call[]} calls */
export function unsuccessful(calls) {
  const kinds = calls.filter((call) => call.result?.is_error).map((call) => call.result?.error_kind ?? '');
  const named = kinds.map((kind) => (UNSUCCESSFUL.includes(kind) ? kind : 'failed'));
  return UNSUCCESSFUL.map((kind) => ({ kind, count: named.filter((name) => name === kind).length }))
    .filter(({ count }) => count > 0)
    .map(({ kind, count }) => ({ kind, text: t(/** @type {Key} */ (`tool.count.${kind}`), { count }) }));
}
