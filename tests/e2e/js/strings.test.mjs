import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { test } from 'node:test';

const root = new URL('../../../services/gateway/banksman/gateway/interfaces/page/static/', import.meta.url);
const strings = await import(new URL('strings.mjs', root));
const features = readdirSync(new URL('strings/en/', root)).map((name) => name.replace('.mjs', ''));

/** Each feature with its texts. */
async function catalogueOf(language) {
  const read = async (feature) => [
    feature,
    (await import(new URL(`strings/${language}/${feature}.mjs`, root))).default,
  ];
  return Object.fromEntries(await Promise.all(features.map(read)));
}

const byFeature = await catalogueOf('en');
const english = Object.assign({}, ...Object.values(byFeature));
const german = Object.assign({}, ...Object.values(await catalogueOf('de')));

const { formatBytes, formatCost } = await import(new URL('text.mjs', root));

const OTHERS = /^(?:vendor|strings|styles|client)\/|^strings.mjs$/;
const sources = readdirSync(root, { recursive: true })
  .filter((name) => name.endsWith('.mjs') && !OTHERS.test(name))
  .map((name) => [name, readFileSync(new URL(name, root), 'utf8')]);
const source = [...sources.map(([, text]) => text), readFileSync(new URL('strings.mjs', root), 'utf8')].join(
  '\n',
);

const formsOf = (text) => (typeof text === 'string' ? [text] : Object.values(text));
const valuesOf = (text) => [...new Set(formsOf(text).flatMap((form) => form.match(/\{\w+\}/g) ?? []))].sort();

test('every language has the same texts, with the same values', () => {
  assert.deepEqual(Object.keys(german).sort(), Object.keys(english).sort());
  const differing = Object.keys(english).filter(
    (key) => String(valuesOf(german[key])) !== String(valuesOf(english[key])),
  );
  assert.deepEqual(differing, []);
});

test('a text of a number has every plural form of its language', () => {
  for (const [tag, texts] of [
    ['en', english],
    ['de', german],
  ]) {
    const { pluralCategories } = new Intl.PluralRules(tag).resolvedOptions();
    const wrong = Object.entries(texts).filter(
      ([, text]) =>
        typeof text === 'object' && String(Object.keys(text).sort()) !== String(pluralCategories.toSorted()),
    );
    assert.deepEqual(wrong, []);
  }
});

test('every text is used, and every text that is used exists', () => {
  const literals = new Set([...source.matchAll(/'((?:[a-z]\w*\.)+\w+)'/g)].map((match) => match[1]));
  const families = [...source.matchAll(/`((?:[a-z]\w*\.)+\w*)\$\{/g)].map((match) => match[1]);
  const unused = Object.keys(english).filter(
    (key) => !literals.has(key) && !families.some((family) => key.startsWith(family)),
  );
  assert.deepEqual(unused, []);
  const named = [...source.matchAll(/\b(?:t|parts)\('([^']+)'/g)].map((match) => match[1]);
  assert.deepEqual(
    [...new Set(named)].filter((key) => !(key in english)),
    [],
  );
});

const modules = Object.fromEntries(sources);
const START = new Set(['common', 'navigation', 'chat']);
const LOADED = /withTexts\(\s*import\(\s*'(\.[^']+)'\s*\)((?:,\s*'\w+')+)/g;
const IMPORTED = /(?<![\w.])(?:im|ex)port\s*(?:[\w$*{},\s]+?\bfrom\s*)?'(\.[^']+)'/g;

/** The module and those it imports at its start. */
function withImports(name, found = new Set()) {
  if (found.has(name) || !modules[name]) return found;
  found.add(name);
  for (const [, path] of modules[name].matchAll(IMPORTED)) withImports(pathFrom(name, path), found);
  return found;
}

const pathFrom = (name, path) => new URL(path, `x:/${name}`).pathname.slice(1);

/** The features whose texts a module and its imports name, besides those of the start. */
function featuresOf(name) {
  const code = [...withImports(name)].map((found) => modules[found]).join('\n');
  const literals = new Set([...code.matchAll(/'((?:[a-z]\w*\.)+\w+)'/g)].map((match) => match[1]));
  return features.filter(
    (feature) => !START.has(feature) && Object.keys(byFeature[feature]).some((key) => literals.has(key)),
  );
}

test('a module is loaded with the texts of the features that it shows', () => {
  assert.deepEqual(featuresOf('main.mjs'), []);
  const loads = sources.flatMap(([name, text]) =>
    [...text.matchAll(LOADED)].map(([, path, named]) => [pathFrom(name, path), named.match(/\w+/g)]),
  );
  assert.ok(loads.length > 10);
  const missing = loads.flatMap(([name, named]) =>
    featuresOf(name)
      .filter((feature) => !named.includes(feature))
      .map((feature) => `${name}: ${feature}`),
  );
  assert.deepEqual(missing, []);
});

/** Names of keys, types and protocols, which are the same in every language. */
const NAMES =
  /^(?:Notification|OpenAI|Anthropic|Google Gemini|Mistral|Groq|DeepSeek|OpenRouter|Ollama|Brave|Tavily|SearXNG|Ctrl|Shift|Esc|Enter|Escape|Tab|Arrow\w+|Home|End|Delete|Bearer|Banksman|JSON|[A-Z]\w*Error|[A-Z]{2,}|[A-Z0-9]+-\d+|[KMGT]iB|Segoe UI|Helvetica Neue|Maths|U\+|A|Z)$/;
const SENT_BY_THE_SERVER = new Set(['The run was cancelled.']);

/** Literals of a module that a user would read. */
function readable(text) {
  const code = text.replaceAll(/\/\*[^]*?\*\/|(?<![:'"])\/\/.*$/gm, '').replaceAll(/\blazy\([^]*?\);$/gm, '');
  const literals = [...code.matchAll(/'((?:[^'\\\n]|\\.)*)'/g)]
    .map((match) => match[1])
    .filter((literal) => /^[A-Z][a-z]/.test(literal));
  const templates = code.replaceAll(/\$\{(?:[^{}`]|\{[^{}]*\})*\}/g, '${}');
  const contents = [
    ...templates.matchAll(/<\/?[\w$-][^<>]*?>\s*([^<>`${}]*[A-Za-z]{2}[^<>`${}]*)(?=<|\$\{)/g),
  ].map((match) => match[1].trim());
  const attributes = [
    ...templates.matchAll(/\s(?:label|title|alt|placeholder|submitLabel|aria-label)="([^"]*[A-Za-z][^"]*)"/g),
  ].map((match) => match[1]);
  return [...literals, ...contents, ...attributes].filter(
    (found) => !NAMES.test(found) && !SENT_BY_THE_SERVER.has(found),
  );
}

test('no module contains texts outside the catalogues', () => {
  const found = Object.fromEntries(
    sources.map(([name, text]) => [name, readable(text)]).filter(([, texts]) => texts.length),
  );
  assert.deepEqual(found, {});
});

test('plural forms, numbers and elements follow the language', async () => {
  const { t, parts, setLanguage, known, explain } = strings;
  assert.equal(t('diff.unchanged', { count: 1 }), '1 unchanged line');
  assert.equal(t('usage.tokens', { input: 12345, cached: '', output: 7 }), '12,345 in · 7 out');
  assert.deepEqual(parts('composer.enter', { key: 7 }), ['', '7', ' sends']);
  assert.equal(known('outcome.not_yet_known', 'other'), 'other');
  assert.equal(explain({ status: 0, message: 'fetch failed' }), english['error.unreachable']);
  assert.equal(explain({ code: 'conflict', message: 'It lists other calls.' }), 'It lists other calls.');
  await setLanguage('de');
  assert.equal(t('diff.unchanged', { count: 2 }), '2 unveränderte Zeilen');
  assert.equal(t('usage.tokens', { input: 12345, cached: '', output: 7 }), '12.345 Eingabe · 7 Ausgabe');
  assert.deepEqual(
    [formatCost(0.75), formatCost(0.0042), formatBytes(1536)],
    ['0,75\u00A0$', '0,0042\u00A0$', '1,5 KiB'],
  );
  assert.equal(strings.translated('notice.demo', english['notice.demo']), german['notice.demo']);
  assert.equal(strings.translated('notice.demo', 'Tools are off.'), 'Tools are off.');
});

test('the first language that the page speaks is chosen', () => {
  assert.deepEqual([[null, 'fr', 'de-AT', 'en'], ['pt'], ['EN-gb']].map(strings.languageFor), [
    'de',
    'en',
    'en',
  ]);
});

test('no message of the browser or of a library is shown', () => {
  console.error = () => {};
  for (const failure of [
    new TypeError('x is undefined'),
    new SyntaxError('Unexpected token'),
    new DOMException('Aborted'),
  ])
    assert.equal(strings.explain(failure), strings.t('error.unexpected'));
  assert.equal(strings.explain(new Error('The file is too large.')), 'The file is too large.');
  assert.equal(
    strings.explain({ code: 'some_code', message: 'The quota is used up.' }),
    'The quota is used up.',
  );
});
