/** Markdown, code and diagrams. */

import hljs from 'highlight.js';
import { useEffect, useMemo, useState } from 'preact/hooks';

import { draw } from '../diagrams.mjs';
import { blocksOf, imagePath } from '../markdown.mjs';
import { mathsFor } from '../maths.mjs';
import { sanitise } from '../sanitise.mjs';
import { isImageData } from '../text.mjs';
import { explain, t } from '../strings.mjs';
import { dark } from '../theme.mjs';
import { CopyButton, html, memo, useStore } from './ui.mjs';

/** Width below which a diagram scrolls instead of shrinking. */
const LEGIBLE_WIDTH_PX = 520;
const MAX_HIGHLIGHT_CHARACTERS = 50_000;

/** The Markdown of a message. A diagram is drawn once its fence is closed. */
export const Markdown = memo(function Markdown({ text, streaming = false }) {
  const maths = mathsFor(text);
  const blocks = useMemo(() => blocksOf(text, maths), [text, maths]);
  return html`<div class=${`markdown ${streaming ? 'streaming' : ''}`}>
    ${blocks.map((block, at) => html`<${Block} key=${at} ...${block} />`)}
  </div>`;
});

const Block = memo(function Block({ kind, html: markup, language, source, closed, address, text }) {
  if (kind === 'image') return html`<${MessageImage} address=${address} text=${text} />`;
  if (kind === 'html') return html`<${Prose} markup=${markup} />`;
  if (language === 'mermaid' && closed) return html`<${Diagram} source=${source} />`;
  return html`<${Code} language=${language} source=${source} />`;
});

const MAX_IMAGE_BYTES = 10 * 1024 * 1024;

/** An image of the workspace or a data URL. The browser sends no other requests for a message. */
export const MessageImage = memo(function MessageImage({ address, text }) {
  const store = useStore();
  const [shown, setShown] = useState(isImageData(address) ? { url: address } : null);
  const name = isImageData(address) ? '' : imagePath(address);
  const id = store.currentId.value;
  const version = store.filesVersion.value;
  useEffect(() => {
    if (isImageData(address)) return undefined;
    let current = true;
    let url = null;
    store.api.file(id, imagePath(address)).then(
      (blob) => {
        if (!current) return;
        url = blob.size > MAX_IMAGE_BYTES ? null : URL.createObjectURL(blob);
        setShown(url ? { url } : { problem: t('content.imageTooLarge', { name }) });
      },
      (error) => current && setShown({ problem: t('content.imageFailed', { name, reason: explain(error) }) }),
    );
    return () => {
      current = false;
      if (url) URL.revokeObjectURL(url);
    };
  }, [address, id, version]);
  if (shown?.problem) return html`<p class="notice info" role="note">${shown.problem}</p>`;
  return html`<figure class="message-image">
    ${shown && html`<img src=${shown.url} alt=${text || name || t('content.image')} />`}
    <figcaption>${text || name}</figcaption>
  </figure>`;
});

const Prose = memo(function Prose({ markup }) {
  const clean = useMemo(() => sanitise(markup), [markup]);
  return html`<div class="prose" dangerouslySetInnerHTML=${{ __html: clean }} />`;
});

/** A code block with its language and a copy button, highlighted if the language is known. */
export const Code = memo(function Code({ language, source, label }) {
  const markup = useMemo(() => highlighted(language, source), [language, source]);
  return html`<figure class="code">
    <figcaption>
      <span>${label ?? (language || 'text')}</span
      ><${CopyButton} text=${source} label=${t('content.copyCode')} />
    </figcaption>
    <pre tabindex="0">
${
        markup === null
          ? html`<code>${source}</code>`
          : html`<code class="hljs" dangerouslySetInnerHTML=${{ __html: markup }} />`
      }</pre>
  </figure>`;
});

/** The markup of a source with colours; null for an unknown language or a long text. */
export function highlighted(language, source) {
  if (!hljs.getLanguage(language) || source.length > MAX_HIGHLIGHT_CHARACTERS) return null;
  return sanitise(hljs.highlight(source, { language, ignoreIllegals: true }).value);
}

const Diagram = memo(function Diagram({ source }) {
  const [picture, setPicture] = useState(null);
  const [error, setError] = useState(null);
  const isDark = dark.value;
  useEffect(() => {
    let current = true;
    draw(source, isDark).then(
      (drawn) => current && (setPicture(drawn), setError(null)),
      (failure) => current && setError(failure.message),
    );
    return () => (current = false);
  }, [source, isDark]);
  if (error !== null) {
    return html`<div class="diagram-error">
      <p role="note">${t('content.diagramFailed')}</p>
      <pre class="diagram-message">${error}</pre>
      <${Code} language="mermaid" source=${source} />
    </div>`;
  }
  if (picture === null) return html`<div class="diagram pending" role="status">${t('content.drawing')}</div>`;
  return html`<figure class="diagram">
    <div class="diagram-scroll" tabindex="0">
      <img
        src=${picture.url}
        width=${picture.width}
        height=${picture.height}
        style=${{ minWidth: `${Math.min(picture.width, LEGIBLE_WIDTH_PX)}px` }}
        alt=${t('content.diagram', { source })}
      />
    </div>
    <figcaption><${CopyButton} text=${source} label=${t('content.copyDiagram')} /></figcaption>
  </figure>`;
});
