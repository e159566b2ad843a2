/** A read-only conversation, for every user of the tenant who has the link and may read its conversations. */

import { pathOf } from '../branches.mjs';
import { Between, Run } from '../components/run.mjs';
import { Frame } from '../components/view.mjs';
import { Loading, html, useStore } from '../components/ui.mjs';
import { t } from '../strings.mjs';

/** @param {{path: string[]}} properties the id of the conversation */
export default function ReadView({ path: [id] }) {
  const { opened } = useStore();
  if (!/^[\w-]{1,64}$/.test(id ?? ''))
    return html`<${Frame} title=${t('read.title')}><p class="empty">${t('read.none')}</p><//>`;
  const conversation = opened.follow(id).value;
  const path = pathOf(conversation);
  const actions = html`<a class="toggle" href=${`#/c/${id}`}>${t('read.open')}</a>`;
  return html`<${Frame} title=${conversation.title || t('read.title')} actions=${actions}>
    ${conversation.error && html`<p class="empty" role="alert">${conversation.error}</p>`}
    ${!conversation.replayed && html`<${Loading} />`}
    <fieldset class="read-only log" disabled>
      <${Between} conversation=${conversation} after=${null} />
      ${path.map(
        ({ run }, at) =>
          html`<${Run}
              key=${run.id}
              run=${run}
              details=${false}
              isLast=${at === path.length - 1} /><${Between}
              key=${`after ${run.id}`}
              conversation=${conversation}
              after=${run.id} />`,
      )}
    </fieldset>
  <//>`;
}
