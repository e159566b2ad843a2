/** The keys of the page and what they do. */

import { t } from '../strings.mjs';
import { COMMAND, html } from './ui.mjs';

/** @type {[string[], import('../strings.mjs').Key][]} */
const KEYS = [
  [[COMMAND, 'K'], 'keys.palette'],
  [['?'], 'keys.map'],
  [['Enter'], 'keys.send'],
  [['Shift', 'Enter'], 'keys.line'],
  [['A'], 'keys.approve'],
  [['R'], 'keys.reject'],
  [['E'], 'keys.edit'],
  [['J', 'K'], 'keys.move'],
  [['X'], 'keys.choose'],
  [['Esc'], 'keys.close'],
];

export function KeyboardMap() {
  return html`<dl class="keyboard-map">
    ${KEYS.map(
      ([keys, text]) =>
        html`<div>
          <dt>${keys.map((key) => html`<kbd>${key}</kbd> `)}</dt>
          <dd>${t(text)}</dd>
        </div>`,
    )}
  </dl>`;
}
