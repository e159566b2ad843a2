/** The inbox: all open approval requests of the tenant, or the request that a link names. */

import { ApprovalList } from '../components/inbox.mjs';
import { Empty, FormError } from '../components/requests.mjs';
import { Action, Loading, html, useStore } from '../components/ui.mjs';
import { Frame } from '../components/view.mjs';
import { addressOf } from '../router.mjs';
import { parts, t } from '../strings.mjs';

export default function ApprovalsView(/** @type {{path: string}} */ { path }) {
  return path.length ? html`<${OneRequest} id=${path[0]} link=${path[1]} />` : html`<${AllRequests} />`;
}

/** The request of a link in a chat message or an e-mail. @param {{id: string, link: string | null}} properties */
function OneRequest({ id, link }) {
  const { inbox } = useStore();
  inbox.link = link ? { id, link } : null;
  const { items, loading, error } = inbox.state.value;
  const request = items.find((item) => item.id === id);
  return html`<${Frame}
    title=${t('inbox.title')}
    actions=${html`<${Action} icon="back" text=${t('inbox.all')} href=${addressOf('approvals')} />`}>
    <${FormError} error=${error} />
    ${loading && html`<${Loading} />`}
    ${!loading && !request && html`<${Empty} text=${t('inbox.closed')}><${ToDecided} /><//>`}
    ${request && html`<${ApprovalList} requests=${[request]} />`}
  <//>`;
}

const ToDecided = () => html`<a class="button" href=${addressOf('decided')}>${t('decided.title')}</a>`;

function AllRequests() {
  const { inbox } = useStore();
  const { items, loading, error } = inbox.state.value;
  const waiting = inbox.waiting.value;
  const aside = items.filter((item) => !item.forYou);
  return html`<${Frame} title=${t('inbox.title')} actions=${html`<${NotifyButton} inbox=${inbox} />`}>
    <${FormError} error=${error} />
    ${loading && html`<${Loading} />`}
    ${!loading && !waiting.length && html`<${Empty} text=${t('inbox.empty')}><${ToDecided} /><//>`}
    ${waiting.length > 0 && html`<p class="inbox-keys text-s muted">${parts('inbox.keys', KEYS)}</p>`}
    <${ApprovalList} requests=${waiting} keys />
    ${
      aside.length > 0 &&
      html`<section class="inbox-aside">
        <h2>${t('inbox.aside')}</h2>
        <${ApprovalList} requests=${aside} />
      </section>`
    }
  <//>`;
}

const key = (/** @type {string} */ name) => html`<kbd>${name}</kbd>`;
const KEYS = {
  next: key('J'),
  previous: key('K'),
  approve: key('A'),
  reject: key('R'),
  edit: key('E'),
  choose: key('X'),
};

function NotifyButton(/** @type {{inbox: import('../stores/inbox.mjs').Inbox}} */ { inbox }) {
  if (!('Notification' in globalThis)) return null;
  const on = inbox.notifies.value;
  return html`<${Action}
    icon="bell"
    text=${t('inbox.notify')}
    aria-pressed=${on}
    title=${t('inbox.notifyTitle')}
    onClick=${() => inbox.setNotifies(!on)} />`;
}
