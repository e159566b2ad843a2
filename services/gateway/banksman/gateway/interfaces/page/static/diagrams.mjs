/** Draw diagrams in a sandboxed frame with an opaque origin, and return them as pictures. */

import { t } from './strings.mjs';

const DRAW_TIMEOUT_MS = 20_000;

/** @typedef {{url: string, width: number, height: number}} Picture */

/** @type {HTMLIFrameElement | null} */
let frame = null;
/** @type {Promise<string> | null} */
let ready = null;
/** @type {Map<string, {resolve: (svg: string) => void, reject?: (error: Error) => void}>} */
const waiting = new Map();
/** @type {Map<string, Promise<Picture>>} */
const drawn = new Map();
let counter = 0;

function start() {
  frame = document.createElement('iframe');
  frame.setAttribute('sandbox', 'allow-scripts');
  frame.className = 'diagram-frame';
  frame.tabIndex = -1;
  frame.title = t('content.diagramFrame');
  frame.setAttribute('aria-hidden', 'true');
  ready = new Promise((resolve) => waiting.set('ready', { resolve }));
  addEventListener('message', receive);
  frame.src = new URL('./diagram.html', import.meta.url).href;
  document.body.append(frame);
  return frame;
}

function receive(/** @type {MessageEvent} */ event) {
  if (event.source !== frame?.contentWindow) return;
  const { id, svg, error } = event.data ?? {};
  const entry = waiting.get(id);
  if (!entry) return;
  waiting.delete(id);
  if (error === undefined) entry.resolve(svg);
  else entry.reject?.(new Error(problemOf(error)));
}

/** mermaid writes for programmers; a person needs only the line. @param {string} error */
function problemOf(error) {
  const line = /\bline (\d+)/i.exec(error)?.[1];
  return line ? t('content.diagramLine', { line }) : t('content.diagramFailed');
}

function sizeOf(/** @type {string} */ svg) {
  const box = /viewBox="([-\d.]+) ([-\d.]+) ([\d.]+) ([\d.]+)"/.exec(svg);
  return box
    ? { width: Math.ceil(Number(box[3])), height: Math.ceil(Number(box[4])) }
    : { width: 640, height: 360 };
}

/**
 * Draw a mermaid diagram.
 *
 * @param {string} source
 * @param {boolean} dark
 * @returns {Promise<Picture>} a data URL and its size in pixels
 * @throws {Error} if the source is not a valid diagram
 */
export function draw(source, dark) {
  const key = `${dark}:${source}`;
  const known = drawn.get(key) ?? render(source, dark);
  drawn.set(key, known);
  return known;
}

async function render(/** @type {string} */ source, /** @type {boolean} */ dark) {
  const shown = frame ?? start();
  await ready;
  counter += 1;
  const id = `diagram${counter}`;
  /** @type {string} */
  const svg = await new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    setTimeout(() => waiting.delete(id) && reject(new Error(t('content.diagramSlow'))), DRAW_TIMEOUT_MS);
    shown.contentWindow?.postMessage({ id, source, dark }, '*');
  });
  const size = sizeOf(svg);
  const fixed = svg.replace(
    /<svg ([^>]*?)width="100%"/,
    `<svg $1width="${size.width}" height="${size.height}"`,
  );
  return { url: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(fixed)}`, ...size };
}
