import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  blocksOf,
  imagePath,
  fenceClosed,
  growingBlocks,
  withPlainTags,
} from '../../../services/gateway/banksman/gateway/interfaces/page/static/markdown.mjs';

const FENCE = '```mermaid\nflowchart LR\n  A --> B\n';

test('a fence counts as closed only by its own closing line', () => {
  assert.equal(fenceClosed(FENCE), false);
  assert.equal(fenceClosed(`${FENCE}\`\``), false);
  assert.equal(fenceClosed(`${FENCE}\`\`\``), true);
  assert.equal(fenceClosed(`${FENCE}\`\`\`\`  \n`), true);
  assert.equal(fenceClosed(`${FENCE}~~~`), false);
  assert.equal(fenceClosed('~~~~\ncode\n~~~'), false);
  assert.equal(fenceClosed('```'), false);
});

test('no prefix of a diagram counts as closed before its fence is', () => {
  const whole = `Before\n\n${FENCE}\`\`\`\n\nAfter`;
  const closedFrom = whole.indexOf('```', 12) + 3;
  for (let length = 1; length <= whole.length; length += 1) {
    const code = blocksOf(whole.slice(0, length)).find(
      (block) => block.kind === 'code' && block.language === 'mermaid',
    );
    if (code)
      assert.equal(
        code.closed,
        length >= closedFrom,
        `at ${length}: ${JSON.stringify(whole.slice(0, length))}`,
      );
  }
});

test('prose and code keep their order, with the language of each fence', () => {
  const blocks = blocksOf('Hello\n\n```Python title=x\nprint(1)\n```\n\n| a | b |\n|---|--:|\n| 1 | 2 |');
  assert.deepEqual(
    blocks.map((block) => block.kind),
    ['html', 'code', 'html'],
  );
  assert.deepEqual(blocks[1], { kind: 'code', language: 'python', source: 'print(1)', closed: true });
  assert.match(blocks[2].html, /<td class="number" align="right">2<\/td>/);
});

test('an image becomes a link, so that reading a message fetches nothing', () => {
  const [block] = blocksOf('![chart](https://example.org/x.png?q="1)');
  assert.doesNotMatch(block.html, /<img/);
  assert.match(block.html, /<a href="https:\/\/example\.org\/x\.png/);
});

test('raw HTML is shown as text, except plain inline tags', () => {
  assert.equal(withPlainTags('a<br>b<kbd>'), 'a<br>b<kbd>');
  assert.equal(withPlainTags('<img src=x onerror=alert(1)>'), '&lt;img src=x onerror=alert(1)&gt;');
  assert.equal(withPlainTags('<b onclick="x()">'), '&lt;b onclick=&quot;x()&quot;&gt;');
  const html = blocksOf('<script>alert(1)</script>\n\n<div onclick="x()">\n\n5 &lt; 6 <style>')
    .map((block) => block.html)
    .join('');
  assert.doesNotMatch(html, /<(script|div|style)/);
});

test('maths is found between its delimiters, and a price is none', () => {
  const found = [];
  const record = (source, display) => {
    found.push([source, display]);
    return `<math>${source}</math>`;
  };
  const [inline] = blocksOf('Half is $\\frac{1}{2}$ and \\(x^2\\), it costs $5 or $6.', record);
  blocksOf('$$\nE = mc^2\n$$', record);
  blocksOf('\\[\na + b\n\\]', record);
  assert.deepEqual(found, [
    ['\\frac{1}{2}', false],
    ['x^2', false],
    ['E = mc^2', true],
    ['a + b', true],
  ]);
  assert.match(inline.html, /costs \$5 or \$6/);
  assert.match(blocksOf('$x^2$')[0].html, /<code>x\^2<\/code>/);
});

test('only an image of the workspace or within the text is shown; any other address stays a link', () => {
  const image = (address) => blocksOf(`![A chart](${address})`)[0];
  assert.deepEqual(image('plots/a%20b.png'), { kind: 'image', address: 'plots/a%20b.png', text: 'A chart' });
  assert.equal(imagePath('./plots/a%20b.png'), 'plots/a b.png');
  assert.equal(image('data:image/png;base64,iVBORw0KGgo=').kind, 'image');
  for (const address of [
    'https://evil.example/a.png',
    '//evil.example/a.png',
    '/context/keys/a.png',
    '../other/a.png',
    'a.png?secret=1',
    'data:image/svg+xml;base64,PHN2Zz4=',
    'data:text/html;base64,PGI+',
    'http:evil.png',
    '%2F%2Fevil.example/a.png',
    'plots/%2e%2e/%2e%2e/a.png',
  ]) {
    assert.equal(image(address).kind, 'html', address);
    assert.match(image(address).html, /^<p><a href=/, address);
  }
});

test('headings follow each other without a jump, below the title of the page', () => {
  const levels = blocksOf('# One\n\n#### Two\n\n## Three\n').map(({ html }) => html.slice(0, 4));
  assert.deepEqual(levels, ['<h2>', '<h3>', '<h3>']);
});

test('a growing text has the blocks that it has when it is read as a whole', () => {
  const text = [
    '# Title\n\nHello *you*\nagain\n\n- a\n- b\n\n  c\n\n  ```py\n  x = 1\n  ```\n- d\n\nunderlined\n===\n\n',
    '| a | b |\n|---|---|\n| 1 | 2 |\n\n> quoted\nlazily\n\n```js\nlet a;\n```\n\n    indented\n\n1. x\n2. y\n\n',
    '<details>\nfolded\n</details>\n\n#### Deep\n\n$$\na\n$$\n\n![i](a.png)\n\n---\nend\twith tab\r\n\r\n\tcode',
  ].join('');
  const grown = growingBlocks();
  for (let length = 1; length <= text.length; length += 1)
    assert.deepEqual(grown(text.slice(0, length)), blocksOf(text.slice(0, length)), `at ${length}`);
  assert.deepEqual(grown('Another text'), blocksOf('Another text'));
});
