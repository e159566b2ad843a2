/** Tables of the operator's views. */

import { html } from '../ui.mjs';

/** A table with a heading. @param {{title: string, columns: string[], rows: unknown[][], empty: string}} properties */
export function Records({ title, columns, rows, empty }) {
  return html`<section class="operator">
    <h2>${title}</h2>
    ${rows.length
      ? html`<div class="table" tabindex="0" role="region" aria-label=${title}><table class="records">
          <thead><tr>${columns.map((column) => html`<th>${column}</th>`)}</tr></thead>
          <tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody>
        </table></div>`
      : html`<p class="muted">${empty}</p>`}
  </section>`;
}
