/** Tables of the operator's views. */

import { html } from '../ui.mjs';

/**
 * A table with a heading. In a narrow window each row is a block in which every cell shows the name of its
 * column. The roles are explicit, because browsers give a table without `display: table` no roles.
 *
 * @param {{title: string, columns: string[], rows: unknown[][], keys?: (string | number)[], empty: string, children?: unknown}} properties
 *   `keys` identify the rows of a table with buttons: the focus stays with its row when rows before it end. Children are
 *   between the heading and the table
 */
export function Records({ title, columns, rows, keys, empty, children }) {
  return html`<section class="operator">
    <h2>${title}</h2>
    ${children}
    ${
      rows.length
        ? html`<div class="table" tabindex="0" role="region" aria-label=${title}>
            <table class="records stacked" role="table">
              <thead role="rowgroup">
                <tr role="row">
                  ${columns.map((column) => html`<th role="columnheader">${column}</th>`)}
                </tr>
              </thead>
              <tbody role="rowgroup">
                ${rows.map(
                  (row, at) =>
                    html`<tr role="row" key=${keys?.[at]}>
                      ${row.map((cell, column) => html`<td role="cell" data-label=${columns[column]}><div class="cell">${cell}</div></td>`)}
                    </tr>`,
                )}
              </tbody>
            </table>
          </div>`
        : html`<p class="muted">${empty}</p>`
    }
  </section>`;
}
