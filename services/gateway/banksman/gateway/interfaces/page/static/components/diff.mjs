/** The difference of two texts, line by line. */

import { useMemo } from 'preact/hooks';

import { lineRows, patchRows } from '../linediff.mjs';
import { t } from '../strings.mjs';
import { Exact, html } from './ui.mjs';

const SIGNS = { added: '+', removed: '−', same: ' ', skipped: '⋯' };

/**
 * @param {{path: string, before?: string | null, after?: string, patch?: string}} properties the two texts, of which
 *   `before` is null for a new file; or their patch
 */
export function Diff({ path, before, after, patch }) {
  const { rows, added, removed } = useMemo(
    () => (patch === undefined ? lineRows(before ?? null, after ?? '') : patchRows(patch)),
    [before, after, patch],
  );
  return html`<div class="diff">
    <p class="diff-head wrap muted text-xs">
      <code><${Exact} text=${path} /></code>
      <span>${t(before === null ? 'approval.newFile' : 'approval.changed')}</span>
      <span class="added">+${added}</span> <span class="removed">−${removed}</span>
    </p>
    <pre tabindex="0">
${rows.map(
        (row) =>
          html`<span class=${`row ${row.kind}`}
            ><span class="sign">${SIGNS[row.kind]}</span><${Exact} text=${row.text}
          /></span>`,
      )}</pre>
  </div>`;
}
