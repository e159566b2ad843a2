/** The keys that work in every view: the command palette, and the keyboard map. */

import { useEffect, useState } from 'preact/hooks';

import { t } from '../strings.mjs';
import { lazy } from './lazy.mjs';
import { Palette } from './palette.mjs';
import { Dialog, html } from './ui.mjs';

const KeyboardMap = lazy(() => import('./keyboard_map.mjs'), 'KeyboardMap');

export function Shortcuts() {
  const [open, setOpen] = useState(null);
  useEffect(() => {
    const onKey = (event) => {
      const wanted = wantedBy(event);
      if (!wanted || document.querySelector('dialog[open]')) return;
      event.preventDefault();
      setOpen(wanted);
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, []);
  const close = () => setOpen(null);
  if (open === 'palette') return html`<${Palette} onClose=${close} />`;
  if (open === 'map') return html`<${Dialog} title=${t('keys.title')} onClose=${close}><div class="dialog-body"><${KeyboardMap} /></div><//>`;
  return null;
}

function wantedBy(event) {
  if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === 'k') return 'palette';
  const typing = event.target.matches?.('input, textarea, select');
  return event.key === '?' && !typing && !event.ctrlKey && !event.metaKey ? 'map' : null;
}
