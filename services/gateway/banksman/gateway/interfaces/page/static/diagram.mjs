/** Draws diagrams inside the sandboxed frame: receives the source and returns the SVG by messages. */

import mermaid from './vendor/mermaid/mermaid.esm.min.mjs';

const FONT = 'ui-sans-serif, system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

const LIGHT = {
  background: '#ffffff',
  primaryColor: '#f6f3ee',
  primaryBorderColor: '#b9b2a6',
  primaryTextColor: '#23211e',
  secondaryColor: '#fdeee3',
  tertiaryColor: '#eef3f1',
  lineColor: '#857f75',
  textColor: '#23211e',
  edgeLabelBackground: '#ffffff',
};

const DARK = {
  darkMode: true,
  background: '#1d1c1a',
  primaryColor: '#2b2926',
  primaryBorderColor: '#6d675e',
  primaryTextColor: '#ece8e1',
  secondaryColor: '#3a2a20',
  tertiaryColor: '#26302d',
  lineColor: '#968f84',
  textColor: '#ece8e1',
  edgeLabelBackground: '#1d1c1a',
};

function configure(dark) {
  mermaid.initialize({
    startOnLoad: false,
    securityLevel: 'strict',
    theme: 'base',
    themeVariables: { fontFamily: FONT, fontSize: '14px', ...(dark ? DARK : LIGHT) },
    fontFamily: FONT,
    htmlLabels: false,
    flowchart: { htmlLabels: false, curve: 'basis' },
    suppressErrorRendering: true,
  });
}

let queue = Promise.resolve();

async function draw({ id, source, dark }) {
  try {
    configure(dark);
    await mermaid.parse(source);
    const { svg } = await mermaid.render(id, source);
    parent.postMessage({ id, svg }, '*');
  } catch (error) {
    parent.postMessage({ id, error: String(error?.message ?? error) }, '*');
  }
}

addEventListener('message', (event) => {
  if (event.source === parent) queue = queue.then(() => draw(event.data));
});
parent.postMessage({ id: 'ready', svg: '' }, '*');
