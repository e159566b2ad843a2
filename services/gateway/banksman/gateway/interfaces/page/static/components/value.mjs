/** A JSON value as names and values, for users who do not read JSON. */

import { humanise } from '../forms.mjs';
import { t } from '../strings.mjs';
import { Code } from './content.mjs';
import { html } from './ui.mjs';

const MAX_DEPTH = 3;

export function Value(/** @type {{value: unknown, depth?: number}} */ { value, depth = 0 }) {
  if (value === null || value === '') return html`<span class="muted">${t('app.none')}</span>`;
  if (typeof value === 'boolean') return html`<span>${t(value ? 'app.yes' : 'app.no')}</span>`;
  if (typeof value !== 'object') return html`<span class="value-text">${String(value)}</span>`;
  if (depth === MAX_DEPTH) return html`<${Code} language="json" source=${JSON.stringify(value, null, 2)} />`;
  if (Array.isArray(value)) {
    return html`<ul class="values">
      ${value.map((item) => html`<li><${Value} value=${item} depth=${depth + 1} /></li>`)}
    </ul>`;
  }
  return html`<dl class="values">
    ${Object.entries(value).map(
      ([name, item]) =>
        html`<div>
          <dt class="soft">${humanise(name)}</dt>
          <dd class="anywhere"><${Value} value=${item} depth=${depth + 1} /></dd>
        </div>`,
    )}
  </dl>`;
}
