/** Tables of the operator's views. */

import { t } from '../../strings.mjs';
import { FormError } from '../requests.mjs';
import { html } from '../ui.mjs';

/**
 * A table with a heading. In a narrow window each row is a block in which every cell shows the name of its
 * column. The roles are explicit, because browsers give a table without `display: table` no roles.
 *
 * @param {{title: string, columns: Key[], rows: unknown[][], keys?: (string | number)[], empty: string, children?: unknown}} properties
 *   `keys` identify the rows of a table with buttons: the focus stays with its row when rows before it end. Children are
 *   between the heading and the table
 */
export function Records({ title, columns, rows, keys, empty, children }) {
  const names = columns.map((key) => t(key));
  return html`<section class="operator stack">
    <h2>${title}</h2>
    ${children}
    ${
      rows.length
        ? html`<div class="table" tabindex="0" role="region" aria-label=${title}>
            <table class="records stacked" role="table">
              <thead role="rowgroup">
                <tr role="row">
                  ${names.map((column) => html`<th role="columnheader">${column}</th>`)}
                </tr>
              </thead>
              <tbody role="rowgroup">
                ${rows.map(
                  (row, at) =>
                    html`<tr role="row" key=${keys?.[at]}>
                      ${row.map(
                        (cell, column) =>
                          html`<td role="cell" data-label=${names[column]}>
                            <div class="cell">${cell}</div>
                          </td>`,
                      )}
                    </tr>`,
                )}
              </tbody>
            </table>
          </div>`
        : html`<p class="muted">${empty}</p>`
    }
  </section>`;
}

/**
 * A table of what is read page by page.
 *
 * @template One
 * @param {object} properties those of the table, and:
 * @param {import('./pages.mjs').Pages<One>} properties.pages
 * @param {(one: One) => unknown[]} properties.row the cells of an item
 * @param {(one: One) => string | number} [properties.keyOf] identifies an item
 * @param {string} properties.more of the button that reads the next page
 */
export function PagedRecords({ pages: { items, next, error, readMore }, row, keyOf, more, ...table }) {
  return html`<${FormError} error=${error} />
    ${items && html`<${Records} ...${table} rows=${items.map(row)} keys=${keyOf && items.map(keyOf)} />`}
    ${next !== null && html`<button type="button" class="button" onClick=${readMore}>${more}</button>`}`;
}
