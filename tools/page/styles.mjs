/** Report classes of the style sheets that no script, page or library of the page names. */

import { readFileSync, readdirSync } from 'node:fs';

const root = 'services/gateway/banksman/gateway/interfaces/page/static';
/** Classes whose names are built from parts: those of coloured code, and of colours in a terminal. */
const BUILT = /^(hljs|ansi-)/;

const files = readdirSync(root, { recursive: true }).filter((path) => !path.startsWith('vendor/'));
const read = (end) =>
  files.filter((path) => path.endsWith(end)).map((path) => [path, readFileSync(`${root}/${path}`, 'utf8')]);
/** What an attribute `class` has, also inside an expression, and every string of names: a class may be a value. */
const NAMES = /(?:class(?:Name)?|kind)=(?:"[^"]*"|\$\{(?:[^{}]|\{[^{}]*\})*\})|'[\w -]+'|class[Nn]ame = .*/g;
const written = new Set(
  [...read('.mjs'), ...read('.html')].flatMap(([, text]) =>
    (text.match(NAMES) ?? []).join(' ').match(/[\w-]+/g),
  ),
);
const unused = read('.css').flatMap(([path, text]) => {
  const selectors = text.replace(/\/\*.*?\*\//gs, '').replace(/[^{}]*;|[^{};]*(?=\})/g, '');
  const names = new Set([...selectors.matchAll(/\.([A-Za-z][\w-]*)/g)].map(([, name]) => name));
  return [...names]
    .filter((name) => !written.has(name) && !BUILT.test(name))
    .map((name) => `${path}: .${name}`);
});
if (unused.length) console.error(`No component has these classes:\n${unused.join('\n')}`);
process.exitCode = unused.length ? 1 : 0;
