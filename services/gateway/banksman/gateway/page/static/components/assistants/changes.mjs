/** What a save would change, line by line. */

import { t } from '../../strings.mjs';
import { Diff } from '../diff.mjs';
import { html } from '../ui.mjs';

/** An assistant as lines: texts keep their line breaks. */
function linesOf({ revision, ...assistant }) {
  const lines = Object.entries(assistant).map(([name, value]) => `${name}: ${typeof value === 'string' ? value : JSON.stringify(value, null, 2)}\n`);
  return lines.join('');
}

export function Changes({ before, after }) {
  return html`<section class="assistant-part" aria-label=${t('assistant.changes')}>
    <h2>${t('assistant.changes')}</h2>
    <${Diff} path=${before.id} before=${linesOf(before)} after=${linesOf(after)} />
  </section>`;
}
