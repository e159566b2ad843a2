/** Report lines of the page's scripts that are too long: Prettier does not break those of templates. */

import { readFileSync, readdirSync } from 'node:fs';

const ROOT = 'services/gateway/banksman/gateway/interfaces/page/static';
const MOST = 110;
/** A comment or a pattern cannot be broken, and neither can a text that alone fills half of a line. */
const UNBREAKABLE = /^\s*(?:\/\*|\*|\/\/).*|^\s*\/.+\/;$|'[^']*'|"[^"]*"/g;
const HALF = 55;
const lengthOf = (/** @type {string} */ line) =>
  line.replace(UNBREAKABLE, (part) => (part.length < HALF ? part : '')).length;

const long = readdirSync(ROOT, { recursive: true })
  .filter((path) => path.endsWith('.mjs') && !path.startsWith('vendor/') && !path.startsWith('strings/'))
  .flatMap((path) =>
    readFileSync(`${ROOT}/${path}`, 'utf8')
      .split('\n')
      .flatMap((line, at) => (lengthOf(line) > MOST ? [`${path}:${at + 1}`] : [])),
  );
if (long.length)
  console.error(`Break these lines, which have more than ${MOST} characters:\n${long.join('\n')}`);
process.exitCode = long.length ? 1 : 0;
