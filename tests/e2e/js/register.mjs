/** Resolve the page's bare imports by its import map, so that Node runs the modules unchanged. */

import { readFileSync, readdirSync } from 'node:fs';
import { register } from 'node:module';

const root = new URL('../../../services/gateway/banksman/gateway/interfaces/page/', import.meta.url);
const page = readFileSync(new URL('static/index.html', root), 'utf8');
const { imports } = JSON.parse(/<script type="importmap">(.*?)<\/script>/s.exec(page)[1]);
const resolved = Object.fromEntries(
  Object.entries(imports).map(([name, path]) => [name, new URL(path, root).href]),
);

register('./resolve.mjs', import.meta.url, { data: resolved });

const { withTexts } = await import(new URL('static/strings.mjs', root));
const features = readdirSync(new URL('static/strings/en/', root)).map((name) => name.replace('.mjs', ''));
await withTexts(null, ...features);
