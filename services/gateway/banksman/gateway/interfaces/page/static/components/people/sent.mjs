/** The texts to send to an invited person. */

import { parts, t } from '../../strings.mjs';
import { CopyButton, html } from '../ui.mjs';

const LOOPBACK = /^(?:localhost|127\.|\[::1\])/;

/** The address of this page, without the view that it shows. */
export const pageAddress = () => location.origin + location.pathname;

/** The address of the page, and whether others can open it. */
export function Address() {
  return html`<${Line} label=${t('app.address')} text=${pageAddress()} /> <${Reachable} />`;
}

/** A note where only this computer can open the page. */
export function Reachable() {
  return html`${
    LOOPBACK.test(location.hostname) &&
    html`<p class="notice info" role="note">
      <span>${parts('people.loopback', { command: html`<code>BANKSMAN_GATEWAY__HOST</code>` })}</span>
    </p>`
  }`;
}

export function Line(/** @type {{label: string, text: string}} */ { label, text }) {
  return html`<div class="field">
    <div class="field-head muted text-xs"><span>${label}</span><${CopyButton} text=${text} /></div>
    <pre tabindex="0">${text}</pre>
  </div>`;
}
