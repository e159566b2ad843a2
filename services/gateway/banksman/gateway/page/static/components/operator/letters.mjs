/** Messages that could not be handled. */

import { explain, t } from '../../strings.mjs';
import { formatWhen } from '../../text.mjs';
import { html, useStore } from '../ui.mjs';
import { Records } from './records.mjs';

export function DeadLetters({ page, onChange }) {
  const store = useStore();
  const replay = (letter) => store.api.replayDeadLetter(letter.id).then(onChange, (failure) => store.toast(explain(failure)));
  const rows = page.items.map((letter) => [
    formatWhen(letter.ts),
    html`<code>${letter.subject}</code>`,
    letter.reason,
    letter.can_replay
      ? html`<button type="button" class="link" aria-label=${t('operator.replayOf', { id: String(letter.id) })} onClick=${() => replay(letter)}>${t('operator.replay')}</button>`
      : html`<code>${`banksman dead show ${letter.id}`}</code>`,
  ]);
  const columns = [t('operator.when'), t('operator.subject'), t('operator.reason'), t('operator.action')];
  return html`<${Records} title=${t('operator.deadLetters')} columns=${columns} rows=${rows} empty=${t('operator.noDeadLetters')} />
    ${page.next && html`<p class="muted">${t('operator.moreDeadLetters', { count: page.items.length })}</p>`}`;
}
