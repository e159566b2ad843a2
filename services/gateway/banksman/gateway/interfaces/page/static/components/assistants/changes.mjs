/** The difference of two versions of an assistant by line: the effect of a save, or two revisions. */

import { t } from '../../strings.mjs';
import { Diff } from '../diff.mjs';
import { html } from '../ui.mjs';

/**
 * An assistant as lines: texts keep their line breaks.
 *
 * @param {Assistant} assistant
 */
function linesOf({ revision, ...assistant }) {
  const lines = Object.entries(assistant).map(
    ([name, value]) => `${name}: ${typeof value === 'string' ? value : JSON.stringify(value, null, 2)}\n`,
  );
  return lines.join('');
}

/** @param {{before: Assistant, after: Assistant, title?: string}} properties */
export function Changes({ before, after, title = t('assistant.changes') }) {
  return html`<section class="assistant-part stack" aria-label=${title}>
    <h2>${title}</h2>
    <${Diff} path=${before.id} before=${linesOf(before)} after=${linesOf(after)} />
  </section>`;
}
