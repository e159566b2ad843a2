/** Who may see a conversation: everyone of the tenant, or some people, and the link that leads them to it. */

import { useState } from 'preact/hooks';

import { addressOf } from '../router.mjs';
import { t } from '../strings.mjs';
import { Check, Choice, FormDialog, TextField, namesIn } from './fields.mjs';
import { Line } from './people/sent.mjs';
import { Reading, useRead } from './requests.mjs';
import { Dialog, html, useStore } from './ui.mjs';

/** @param {{id: string, title: string, onClose: () => void}} properties */
export function ShareDialog({ id, title, onClose }) {
  const { api, session } = useStore();
  const isAdmin = session.welcome.value?.rights?.includes('admin');
  // Not the entry of the list, which may be old: what is saved replaces all people.
  const read = useRead(async () => {
    const [record, keys] = await Promise.all([
      api.call('conversation.read', { conversation_id: id }),
      isAdmin ? api.items('key.list').catch(() => []) : [],
    ]);
    return { people: record.people ?? null, users: keys.map((key) => key.user) };
  });
  if (read.value) return html`<${PeopleForm} id=${id} title=${title} ...${read.value} onClose=${onClose} />`;
  return html`<${Dialog} title=${t('share.title')} onClose=${onClose}
    ><div class="dialog-body"><${Reading} of=${read} /></div
  ><//>`;
}

/** @param {{id: string, title: string, people: string[] | null, users: string[], onClose: () => void}} properties */
function PeopleForm({ id, title, people, users, onClose }) {
  const { api, list, session } = useStore();
  const { user, tenant } = session.welcome.value ?? {};
  const [isLimited, setLimited] = useState(people !== null);
  const [chosen, setChosen] = useState((people ?? []).filter((one) => one !== user));
  const [others, setOthers] = useState('');
  const known = [...new Set([...(people ?? []), ...users])].filter((one) => one !== user).sort();
  const toggle = (/** @type {string} */ one) =>
    setChosen(chosen.includes(one) ? chosen.filter((other) => other !== one) : [...chosen, one]);
  const submit = async () => {
    const wanted = isLimited ? [...new Set([...chosen, ...namesIn(others)])] : null;
    await api.call('conversation.share', { conversation_id: id }, { people: wanted });
    await list.read();
    onClose();
  };
  return html`<${FormDialog}
    title=${t('share.title')}
    label=${t('app.save')}
    onSubmit=${submit}
    onClose=${onClose}>
    <${Choice}
      label=${t('share.who', { title })}
      value=${isLimited ? 'some' : 'all'}
      onChange=${(/** @type {string} */ who) => setLimited(who === 'some')}
      options=${[
        ['all', t('share.everyone', { tenant: tenant ?? '' })],
        ['some', t('share.only')],
      ]} />
    ${
      isLimited &&
      html`<fieldset class="form-field rights">
          <legend>${t('share.people')}</legend>
          <${Check}
            label=${t('share.you', { user: user ?? '' })}
            value=${true}
            disabled
            onChange=${() => {}} />
          ${known.map(
            (one) =>
              html`<${Check}
                key=${one}
                label=${one}
                value=${chosen.includes(one)}
                onChange=${() => toggle(one)} />`,
          )}
        </fieldset>
        <${TextField} label=${t('share.others')} value=${others} onChange=${setOthers} maxlength="2000" />
        <p class="notice info" role="note"><span>${t('share.means')}</span></p>`
    }
    <${Line} label=${t('share.link')} text=${new URL(addressOf('c', id), document.baseURI).href} />
  <//>`;
}
