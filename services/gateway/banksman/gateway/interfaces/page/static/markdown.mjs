/** Split Markdown into blocks: prose to sanitise, images, and code with its language and whether its fence is closed. */

import { Lexer, Marked, Tokenizer } from 'marked';

import { cutLines, isImageData } from './text.mjs';

/** Maximum time for one text, and maximum characters of one paragraph, item or cell: the grammar is quadratic in both. */
const MAX_LEXING_MS = 300;
const MAX_INLINE_CHARACTERS = 10_000;
/** A text that is quick to read in any form, and so has no time limit, which a busy machine could exceed. */
const SHORT_CHARACTERS = 2_000;
/** Maximum depth of lists and quotations, which are read recursively. */
const MAX_DEPTH = 30;

let deadline = Infinity;
let depth = 0;

class TooComplex extends Error {}

/** The tokenizer that a loop of the lexer tries first: it ends the loop at the deadline. @returns {false} */
function inTime() {
  if (performance.now() > deadline) throw new TooComplex();
  return false;
}

/** The tokenizer of a block that contains blocks; what is nested deeper remains text. @param {'blockquote' | 'list'} name */
function nested(name) {
  /** @this {Tokenizer} @param {string} source @returns {any} */
  return function read(source) {
    if (depth >= MAX_DEPTH) return undefined;
    depth += 1;
    try {
      return /** @type {any} */ (Tokenizer.prototype)[name].call(this, source);
    } finally {
      depth -= 1;
    }
  };
}

const OPENING = /^ {0,3}(`{3,}|~{3,})/;

/** `$$…$$` and `\\[…\\]` between blank lines, `\\(…\\)` and `$…$` in text. A dollar sign before a digit is a price. */
const DISPLAY_MATHS = /^ {0,3}(?:\$\$([^$]+?)\$\$|\\\[([^]+?)\\\])[ \t]*(?:\n|$)/;
const INLINE_MATHS = /^(?:\$\$([^$\n]+?)\$\$|\\\(([^\n]+?)\\\)|\$(?!\s)([^$\n]*[^\s$\\])\$(?!\d))/;

/** A cell that is not broken: a short text that begins with a number. */
const NUMBER = /^[-+−–~≈<>≤≥$€£¥(]*\d[^]{0,24}$/;

/**
 * @param {'block' | 'inline'} level
 * @param {RegExp} rule
 * @param {RegExp} start
 * @param {boolean} display
 * @returns {import('marked').TokenizerAndRendererExtension}
 */
const mathsToken = (level, rule, start, display) => ({
  name: `${level}Maths`,
  level,
  start: (text) => text.match(start)?.index,
  tokenizer(text) {
    const match = rule.exec(text);
    if (!match) return undefined;
    const source = match.slice(1).find(Boolean)?.trim();
    return { type: `${level}Maths`, raw: match[0], source, display };
  },
  renderer: ({ source, markup }) => markup ?? `<code>${escapeHtml(source)}</code>`,
});

const marked = new Marked({ gfm: true, breaks: true });
marked.use({
  extensions: [
    mathsToken('block', DISPLAY_MATHS, /(?<=\n) {0,3}(?:\$\$|\\\[)/, true),
    mathsToken('inline', INLINE_MATHS, /\$|\\\(/, false),
  ],
  tokenizer: { space: inTime, escape: inTime, blockquote: nested('blockquote'), list: nested('list') },
  renderer: {
    html({ text }) {
      return withPlainTags(text);
    },
    // The browser would fetch an image from any host that the model names, and the URL could leak data. A
    // link needs a click.
    image({ href, text }) {
      return `<a href="${escapeHtml(href)}">${escapeHtml(text || href)}</a>`;
    },
    checkbox({ checked }) {
      return `<input type="checkbox" disabled${
        checked ? ' checked aria-label="done"' : ' aria-label="open"'
      }>`;
    },
    link({ href, tokens }) {
      const address = escapeHtml(href);
      return `<a href="${address}" title="${address}">${this.parser.parseInline(tokens)}</a>`;
    },
    table(token) {
      const cell = (/** @type {import('marked').Tokens.TableCell} */ content) =>
        this.tablecell(content).replace(/^<t[hd]/, NUMBER.test(content.text) ? '$& class="number"' : '$&');
      const cells = (/** @type {import('marked').Tokens.TableCell[]} */ row) => row.map(cell).join('');
      const head = `<tr>${cells(token.header)}</tr>`;
      const body = token.rows.map((row) => `<tr>${cells(row)}</tr>`).join('');
      const table = `<table><thead>${head}</thead><tbody>${body}</tbody></table>`;
      return `<div class="table" tabindex="0">${table}</div>`;
    },
  },
});

export function escapeHtml(/** @type {string} */ text) {
  /** @type {Record<string, string>} */
  const entities = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };
  return String(text).replaceAll(/[&<>"']/g, (character) => entities[character]);
}

/** Tags that Markdown may contain; every other tag, and any tag with attributes, is shown as text. */
const PLAIN_TAG = /^<\/?(?:b|br|del|details|em|i|ins|kbd|mark|s|small|strong|sub|summary|sup|u)\s*\/?>$/i;

/** @param {string} text raw HTML as the model wrote it */
export function withPlainTags(text) {
  return text.replaceAll(/<[^>]*>?|[^<]+/g, (piece) =>
    PLAIN_TAG.test(piece) ? piece : escapeHtml(unescaped(piece)),
  );
}

/** Decode entities in the text, so that they are not escaped twice. */
function unescaped(/** @type {string} */ text) {
  return text
    .replaceAll('&lt;', '<')
    .replaceAll('&gt;', '>')
    .replaceAll('&quot;', '"')
    .replaceAll('&#39;', "'")
    .replaceAll('&amp;', '&');
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
  const last = lines.length > 1 ? lines[lines.length - 1].trim() : '';
  return last.length >= fence.length && [...last].every((character) => character === fence[0]);
}

/** True if the text may contain maths. @param {string} text */
export function mayHoldMaths(text) {
  return /\$[^$]+\$|\\[[(]/.test(text);
}

/**
 * @typedef {{kind: 'html', html: string} | {kind: 'code', language: string, source: string, closed: boolean}
 *   | {kind: 'image', address: string, text: string}} Block `html` is not sanitised yet
 * @typedef {((source: string, display: boolean) => string | null) | null} Maths returns markup; without it, or if it
 *   returns null, maths is shown as source
 * @typedef {import('marked').Tokens.Generic} Token
 */

/**
 * Split Markdown into blocks.
 *
 * @param {string} text
 * @param {Maths} [maths]
 * @returns {Block[]}
 */
export function blocksOf(text, maths = null) {
  return blocksOfTokens(lexed(text), maths, { level: 1 });
}

/**
 * Split a text that grows, for example while a model writes it, and read only its last block again.
 *
 * @returns {typeof blocksOf} takes the text so far; a text that does not continue the previous one is read as a whole
 */
export function growingBlocks() {
  let read = '';
  /** @type {Maths} */
  let maths = null;
  let from = 0;
  let headings = { level: 1 };
  /** @type {Block[]} */
  let done = [];
  return (text, converter = null) => {
    if (!text.startsWith(read) || converter !== maths) [from, headings, done] = [0, { level: 1 }, []];
    [read, maths] = [text, converter];
    const tokens = lexed(text.slice(from));
    const end = tokens.findLastIndex(({ type }) => type !== 'space');
    const ended = tokens.slice(0, Math.max(0, end));
    const written = ended.map(({ raw }) => raw).join('');
    // A later line cannot change a block that another block follows. Line ends and tabs are normalised while reading.
    if (text.startsWith(written, from)) {
      from += written.length;
      done = [...done, ...blocksOfTokens(ended, maths, headings)];
      return [...done, ...blocksOfTokens(tokens.slice(ended.length), maths, { ...headings })];
    }
    return [...done, ...blocksOfTokens(tokens, maths, { ...headings })];
  };
}

/** The blocks of tokens; the level of the last heading is kept in `headings`, so that no level is skipped. @param {Token[]} tokens @param {Maths} maths @param {{level: number}} headings @returns {Block[]} */
function blocksOfTokens(tokens, maths, headings) {
  marked.walkTokens(tokens, (/** @type {Token} */ token) => {
    if (token.type === 'heading')
      headings.level = token.depth = Math.min(token.depth + 1, headings.level + 1, 6);
    if (maths && token.type.endsWith('Maths')) token.markup = maths(token.source, token.display);
  });
  return tokens.flatMap((token) => {
    if (token.type === 'space' || token.type === 'def') return [];
    if (token.type === 'code') return [codeBlock(token)];
    return imagesOf(token) ?? [{ kind: 'html', html: marked.parser([token]) }];
  });
}

/** Read a text. What cannot be read within the limits remains text: the model, or a page that it read, wrote it. @param {string} text @returns {Token[]} */
function lexed(text) {
  deadline = text.length > SHORT_CHARACTERS ? performance.now() + MAX_LEXING_MS : Infinity;
  const lexer = new Lexer(marked.defaults);
  const blocks = attempted(() => lexer.blockTokens(text.replaceAll(/\r\n?/g, '\n'), lexer.tokens));
  if (!blocks) return [{ type: 'paragraph', raw: text, text, tokens: [plain(text)] }];
  for (const { src, tokens } of lexer.inlineQueue) {
    const read = src.length <= MAX_INLINE_CHARACTERS && attempted(() => lexer.inlineTokens(src, tokens));
    if (!read) tokens.splice(0, Infinity, plain(src));
  }
  return lexer.tokens;
}

/** Whether the action ended in time. @param {() => void} action */
function attempted(action) {
  try {
    action();
    return true;
  } catch (error) {
    if (!(error instanceof TooComplex)) throw error;
    return false;
  }
}

const plain = (/** @type {string} */ text) => ({
  type: 'text',
  raw: text,
  text: cutLines(text),
  escaped: false,
});

/** The images of a paragraph that contains only images; null for other blocks, or if an image must not be loaded. @param {Token} token @returns {Block[] | null} */
function imagesOf(token) {
  if (token.type !== 'paragraph') return null;
  /** @type {Token[]} */
  const parts = (token.tokens ?? []).filter((part) => part.type !== 'br' && part.raw.trim() !== '');
  const isShown = (/** @type {Token} */ part) =>
    part.type === 'image' && (isImageData(part.href) || imagePath(part.href) !== null);
  if (!parts.length || !parts.every(isShown)) return null;
  return parts.map((part) => ({ kind: 'image', address: part.href, text: part.text }));
}

/** The path of an image in the workspace; null for any other address, because a request to it could leak data. @param {string} address */
export function imagePath(address) {
  const path = decoded(address).replace(/^(?:\.\/)+/, '');
  const isRelative = !/^[\\/]|:|[?#]|(?:^|\/)\.\.(?:\/|$)/.test(path);
  return isRelative && /\.(?:png|jpe?g|gif|webp)$/i.test(path) ? path : null;
}

function decoded(/** @type {string} */ address) {
  try {
    return decodeURIComponent(address);
  } catch {
    return '';
  }
}

/** @param {Token} token @returns {Block} */
function codeBlock(token) {
  const language = (token.lang ?? '').trim().split(/\s+/)[0].toLowerCase();
  return { kind: 'code', language, source: token.text, closed: fenceClosed(token.raw) };
}
