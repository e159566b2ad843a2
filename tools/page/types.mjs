/** Check the types of the page's scripts with TypeScript in its strict mode, after `tools/page_checks.sh` installed it. */

import { createRequire } from 'node:module';
import { relative, resolve } from 'node:path';

const [packages] = process.argv.slice(2);
const ts = createRequire(`${packages}/`)('typescript');
const root = 'services/gateway/banksman/gateway/interfaces/page/static';
const modules = `${packages}/node_modules`;
const { options } = ts.convertCompilerOptionsFromJson(
  {
    allowJs: true,
    checkJs: true,
    strict: true,
    noUnusedLocals: true,
    noUnusedParameters: true,
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
const problems = ts.getPreEmitDiagnostics(program).map(({ file, start, code, messageText }) => {
  const path = file ? relative('.', file.fileName) : '';
  const line = file ? file.getLineAndCharacterOfPosition(start).line + 1 : 0;
  return `${path}:${line}: ${ts.flattenDiagnosticMessageText(messageText, '\n')} (TS${code})`;
});
if (problems.length) console.error(problems.join('\n'));
process.exitCode = problems.length ? 1 : 0;
