/** Markdown, code and diagrams. */

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';

import { draw } from '../diagrams.mjs';
import { coloursOf } from '../highlighting.mjs';
import { blocksOf, growingBlocks, imagePath } from '../markdown.mjs';
import { mathsFor } from '../maths.mjs';
import { sanitise } from '../sanitise.mjs';
import { cutLines, isImageData } from '../text.mjs';
import { t } from '../strings.mjs';
import { dark } from '../theme.mjs';
import { useRead } from './requests.mjs';
import { CopyButton, html, memo, useStore } from './ui.mjs';

/** Width below which a diagram scrolls instead of shrinking. */
const LEGIBLE_WIDTH_PX = 520;
/** How many blocks of a text make a part of it. */
const PART = 16;
/** How long a code block in a list has to stay as it is before it is coloured. */
const SETTLED_MS = 200;
/** How much longer than a text took to be drawn the page waits before it draws more of it. */
const PAUSE = 2;

/** The Markdown of a message. A diagram is drawn once its fence is closed. */
export const Markdown = memo(function Markdown(
  /** @type {{text: string, streaming?: boolean}} */ { text, streaming = false },
) {
  const shown = usePaced(text, streaming);
  const [growing] = useState(growingBlocks);
  const maths = mathsFor(shown);
  const blocks = useMemo(() => (streaming ? growing : blocksOf)(shown, maths), [shown, maths, streaming]);
  const parts = Array.from({ length: Math.ceil(blocks.length / PART) }, (_, at) =>
    blocks.slice(at * PART, (at + 1) * PART),
  );
  return html`<div class=${`markdown ${streaming ? 'streaming' : ''}`}>
    ${parts.map((part, at) => html`<${Part} key=${at} ...${part} />`)}
  </div>`;
});

/** Some blocks of a text, its properties by number. Only a part that changes is compared, and only one in view is laid out. */
const Part = memo(function Part(/** @type {Record<string, unknown>} */ { children, ...blocks }) {
  return html`<div class="part">
    ${Object.values(blocks).map((block, at) => html`<${Block} key=${at} ...${block} />`)}
  </div>`;
});

/**
 * A text that grows, as it was at the last time to draw it: the page stays usable, however long drawing takes.
 *
 * @param {string} text
 * @param {boolean} streaming
 */
function usePaced(text, streaming) {
  const [shown, setShown] = useState(text);
  const latest = useRef(text);
  const timer = useRef(/** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined));
  const began = performance.now();
  latest.current = text;
  useLayoutEffect(() => {
    if (!streaming || timer.current || shown === latest.current) return;
    const show = () => {
      timer.current = undefined;
      setShown(latest.current);
    };
    timer.current = setTimeout(show, PAUSE * (performance.now() - began));
  });
  useEffect(() => () => clearTimeout(timer.current), []);
  return streaming ? shown : text;
}

/** The fields of a block are its properties, because another reading of the same text makes other objects. */
const Block = memo(function Block(/** @type {import('../markdown.mjs').Block} */ block) {
  if (block.kind === 'image') return html`<${MessageImage} address=${block.address} text=${block.text} />`;
  if (block.kind === 'html') return html`<${Prose} markup=${block.html} />`;
  const { language, source, closed } = block;
  if (language === 'mermaid' && closed) return html`<${Diagram} source=${source} />`;
  return html`<${Code} language=${language} source=${source} />`;
});

const MAX_IMAGE_BYTES = 10 * 1024 * 1024;
const MAX_IMAGES = 20;
/** @type {Map<string, Promise<string | null>>} the addresses of the images read last */
const images = new Map();

/**
 * Read an image of a workspace once, however often a conversation shows it; null for one that is too large.
 *
 * @param {Api} api
 * @param {string} id of the conversation
 * @param {string} path
 * @param {number} version of the workspace
 * @returns {Promise<string | null>}
 */
function imageAt(api, id, path, version) {
  const key = `${version} ${id} ${path}`;
  const known = images.get(key);
  if (known) return known;
  const reading = api
    .file(id, path)
    .then((blob) => (blob.size > MAX_IMAGE_BYTES ? null : URL.createObjectURL(blob)));
  images.set(key, reading);
  reading.catch(() => images.delete(key));
  const [oldest] = images.size > MAX_IMAGES ? images : [];
  if (oldest) drop(...oldest);
  return reading;
}

/** An image that is shown remains: its address is needed only to read it. */
function drop(/** @type {string} */ key, /** @type {Promise<string | null>} */ reading) {
  images.delete(key);
  reading.then((url) => url && URL.revokeObjectURL(url)).catch(() => {});
}

/** An image of the workspace or a data URL. The browser sends no other requests for a message. */
export const MessageImage = memo(function MessageImage(
  /** @type {{address: string, text: string}} */ { address, text },
) {
  const { api, navigation, workspace } = useStore();
  const isData = isImageData(address);
  const name = (isData ? null : imagePath(address)) ?? '';
  const id = navigation.currentId.value ?? '';
  const version = workspace.version.value;
  const read = async () => ({ url: await imageAt(api, id, name, version) });
  const { value, error } = useRead(!isData && read, [address, id, version]);
  const url = isData ? address : value?.url;
  const problem = error
    ? t('content.imageFailed', { name, reason: error })
    : url === null && t('content.imageTooLarge', { name });
  if (problem) return html`<p class="notice info" role="note">${problem}</p>`;
  return html`<figure class="message-image">
    ${url && html`<img src=${url} alt=${text || name || t('content.image')} />`}
    <figcaption class="muted text-s">${text || name}</figcaption>
  </figure>`;
});

const Prose = memo(function Prose(/** @type {{markup: string}} */ { markup }) {
  const clean = useMemo(() => sanitise(markup), [markup]);
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (!markup.includes('<pre')) return undefined;
    const timer = setTimeout(
      () => box.current?.querySelectorAll('pre > code[class]').forEach(colour),
      SETTLED_MS,
    );
    return () => clearTimeout(timer);
  }, [markup]);
  return html`<div
    class="prose anywhere"
    dir="auto"
    ref=${box}
    dangerouslySetInnerHTML=${{ __html: clean }} />`;
});

/** Colour a code block inside a list or a quotation, which is a part of its markup. */
async function colour(/** @type {Element} */ code) {
  const markup = await coloursOf(code.className.replace('language-', ''), code.textContent ?? '');
  // The sanitiser made the markup, which is a string where the browser has no trusted types.
  if (markup !== null) code.innerHTML = /** @type {string} */ (markup);
}

/** @typedef {{language: string, source: string, label?: string}} CodeProperties */

/** A code block with its language and a copy button, highlighted if the language is known. */
export const Code = memo(function Code(/** @type {CodeProperties} */ { language, source: whole, label }) {
  const source = useMemo(() => cutLines(whole), [whole]);
  const colours = useColours(language, source);
  const isPart = colours.markup !== null && source.startsWith(colours.source);
  const rest = source.slice(colours.source.length);
  return html`<figure class="code">
    <figcaption class="muted text-xs">
      <span>${label ?? (language || 'text')}</span
      ><${CopyButton} text=${whole} label=${t('content.copyCode')} />
    </figcaption>
    <pre tabindex="0">
${
        isPart
          ? html`<code class="hljs"
              ><span dangerouslySetInnerHTML=${{ __html: colours.markup }} />${rest}</code
            >`
          : html`<code>${source}</code>`
      }</pre>
  </figure>`;
});

/**
 * The last source that was coloured, with its markup or null. While the source changes, it is an earlier state of it.
 *
 * @typedef {{source: string, markup: string | TrustedHTML | null}} Colours
 * @param {string} language
 * @param {string} source
 */
export function useColours(language, source) {
  const [colours, setColours] = useState(/** @type {Colours} */ ({ source: '', markup: null }));
  const busy = useRef(false);
  useEffect(() => {
    if (busy.current || source === colours.source) return;
    busy.current = true;
    coloursOf(language, source).then((markup) => {
      setColours({ source, markup });
      // Inserting the markup of a long source takes time, which a source that still grows must not take at every frame.
      setTimeout(() => {
        busy.current = false;
        setColours((kept) => ({ ...kept }));
      }, source.length / 50);
    });
  });
  return colours;
}

const Diagram = memo(function Diagram(/** @type {{source: string}} */ { source }) {
  const isDark = dark.value;
  const { value: picture, error } = useRead(() => draw(source, isDark), [source, isDark]);
  if (error !== null) {
    return html`<div class="diagram-error">
      <p role="note">${error}</p>
      <${Code} language="mermaid" source=${source} />
    </div>`;
  }
  if (picture === null)
    return html`<div class="diagram muted text-s" role="status">${t('content.drawing')}</div>`;
  return html`<figure class="diagram">
    <div class="diagram-scroll" tabindex="0">
      <img
        src=${picture.url}
        width=${picture.width}
        height=${picture.height}
        style=${{ minWidth: `${Math.min(picture.width, LEGIBLE_WIDTH_PX)}px` }}
        alt=${t('content.diagram', { source })} />
    </div>
    <figcaption><${CopyButton} text=${source} label=${t('content.copyDiagram')} /></figcaption>
  </figure>`;
});
