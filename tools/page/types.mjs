/**
 * Check the types of the page's scripts with TypeScript in its strict mode, after `tools/page_checks.sh` installed it.
 *
 * A file that `unchecked.txt` lists may have errors, but never a name, an import or a member of a module that does
 * not exist. A listed file without errors fails too, so the list only becomes shorter.
 */

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { relative, resolve } from 'node:path';

const [packages] = process.argv.slice(2);
const ts = createRequire(`${packages}/`)('typescript');
const root = 'services/gateway/banksman/gateway/interfaces/page/static';
/** Codes of unknown names, modules and exports, and of calls with a wrong number of arguments. */
const FATAL = new Set([1192, 2304, 2305, 2307, 2451, 2459, 2552, 2614, 2724]);

const modules = `${packages}/node_modules`;
const { options } = ts.convertCompilerOptionsFromJson(
  {
    allowJs: true,
    checkJs: true,
    strict: true,
    noEmit: true,
    target: 'es2023',
    lib: ['es2024', 'dom', 'dom.iterable'],
    module: 'preserve',
    moduleResolution: 'bundler',
    allowImportingTsExtensions: true,
    skipLibCheck: true,
    typeRoots: [`${modules}/@types`],
    types: ['trusted-types'],
    paths: {
      katex: [resolve('tools/page/untyped.d.ts')],
      'diff/line': [`${modules}/diff/libesm/diff/line`],
      '@banksman/client': [resolve(root, 'client')],
      '*': [`${modules}/*`],
    },
  },
  '.',
);

const program = ts.createProgram(
  [`${root}/main.mjs`, 'tools/page/client.ts', 'tools/page/types.d.ts'],
  options,
);
const unchecked = new Set(readFileSync('tools/page/unchecked.txt', 'utf8').split('\n').filter(Boolean));
const withErrors = new Set();
const problems = [];
for (const { file, start, code, messageText } of ts.getPreEmitDiagnostics(program)) {
  const path = file ? relative(root, file.fileName) : '';
  withErrors.add(path);
  if (unchecked.has(path) && !FATAL.has(code)) continue;
  const line = file ? file.getLineAndCharacterOfPosition(start).line + 1 : 0;
  problems.push(`${root}/${path}:${line}: ${ts.flattenDiagnosticMessageText(messageText, '\n')} (TS${code})`);
}
for (const path of unchecked)
  if (!withErrors.has(path)) problems.push(`tools/page/unchecked.txt: ${path} has no errors; remove it`);
console.error(problems.join('\n'));
process.exitCode = problems.length ? 1 : 0;
