/** Text of a terminal: its colours, and the last state of lines that are still written. */

// Select Graphic Rendition, and the other sequences of ECMA-48.
const COLOURS = /\x1b\[([\d;]{0,64})m/g;
const OTHERS = /\x1b\[[0-?]*[ -/]*[@-ln-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?/g;
const NAMES = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];

/** The text in pieces of one colour each. @param {string} text @returns {{text: string, style: string}[]} `style` has classes of CSS */
export function coloured(text) {
  /** @type {{text: string, style: string}[]} */
  const pieces = [];
  let style = '';
  let from = 0;
  const add = (/** @type {number} */ end) =>
    end > from && pieces.push({ text: text.slice(from, end), style });
  for (const match of text.matchAll(COLOURS)) {
    add(match.index);
    style = styleAfter(style, match[1]);
    from = match.index + match[0].length;
  }
  add(text.length);
  return pieces;
}

/** What a terminal would show of text that a running program has written. @param {string} text */
export function lastState(text) {
  const lines = text.replace(OTHERS, '').split('\n');
  return lines.map((line) => line.split('\r').findLast(Boolean) ?? '').join('\n');
}

function styleAfter(/** @type {string} */ style, /** @type {string} */ parameters) {
  let [weight, colour] = [style.includes('bold') ? 'bold' : '', style.replace('bold', '').trim()];
  for (const code of parameters.split(';').map(Number)) {
    if (code === 0) [weight, colour] = ['', ''];
    else if (code === 1) weight = 'bold';
    else if (code === 22) weight = '';
    else if (code === 39) colour = '';
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) colour = `ansi-${NAMES[code % 10]}`;
  }
  return `${weight} ${colour}`.trim();
}
