/** Split Markdown into blocks: prose to sanitise, and code with its language and whether its fence is closed. */

import { Marked } from 'marked';

const OPENING = /^ {0,3}(`{3,}|~{3,})/;

const marked = new Marked({ gfm: true, breaks: true });
marked.use({
  renderer: {
    html({ text }) {
      return withPlainTags(text);
    },
    // The browser would fetch an image from any host that the model names; a link needs a click.
    image({ href, text }) {
      return `<a href="${escapeHtml(href)}">${escapeHtml(text || href)}</a>`;
    },
    link({ href, tokens }) {
      return `<a href="${escapeHtml(href)}" title="${escapeHtml(href)}">${this.parser.parseInline(tokens)}</a>`;
    },
    table(token) {
      const cells = (row) => row.map((cell) => this.tablecell(cell)).join('');
      const head = `<tr>${cells(token.header)}</tr>`;
      const body = token.rows.map((row) => `<tr>${cells(row)}</tr>`).join('');
      return `<div class="table"><table><thead>${head}</thead><tbody>${body}</tbody></table></div>`;
    },
  },
});

/** @param {string} text */
export function escapeHtml(text) {
  const entities = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };
  return String(text).replaceAll(/[&<>"']/g, (character) => entities[character]);
}

/** Tags that Markdown may contain; every other tag, and any tag with attributes, is shown as text. */
const PLAIN_TAG = /^<\/?(?:b|br|del|details|em|i|ins|kbd|mark|s|small|strong|sub|summary|sup|u)\s*\/?>$/i;

/** @param {string} text raw HTML as the model wrote it */
export function withPlainTags(text) {
  return text.replaceAll(/<[^>]*>?|[^<]+/g, (piece) => (PLAIN_TAG.test(piece) ? piece : escapeHtml(unescaped(piece))));
}

/** Undo the entities that the text already holds, so that they are not escaped twice. */
function unescaped(text) {
  return text.replaceAll('&lt;', '<').replaceAll('&gt;', '>').replaceAll('&quot;', '"').replaceAll('&#39;', "'").replaceAll('&amp;', '&');
}

/**
 * Return whether a fenced block ends with its own closing fence.
 *
 * @param {string} raw the block as written, opening fence included
 */
export function fenceClosed(raw) {
  const fence = OPENING.exec(raw)?.[1];
  if (!fence) return true; // An indented block has no fence to close.
  const lines = raw.trimEnd().split('\n');
  const last = lines.length > 1 ? lines.at(-1).trim() : '';
  return last.length >= fence.length && [...last].every((character) => character === fence[0]);
}

/**
 * Split Markdown into blocks.
 *
 * @param {string} text
 * @returns {({kind: 'html', html: string} | {kind: 'code', language: string, source: string, closed: boolean})[]}
 *   `html` is not sanitised yet
 */
export function blocksOf(text) {
  const tokens = marked.lexer(text);
  return tokens.flatMap((token) => {
    if (token.type === 'space' || token.type === 'def') return [];
    if (token.type === 'code') return [codeBlock(token)];
    return [{ kind: 'html', html: marked.parser([token]) }];
  });
}

function codeBlock(token) {
  const language = (token.lang ?? '').trim().split(/\s+/)[0].toLowerCase();
  return { kind: 'code', language, source: token.text, closed: fenceClosed(token.raw) };
}
