import assert from 'node:assert/strict';
import { test } from 'node:test';

import { blocksOf, fenceClosed, withPlainTags } from '../../../services/gateway/banksman/gateway/page/static/markdown.mjs';

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
    const code = blocksOf(whole.slice(0, length)).find((block) => block.kind === 'code' && block.language === 'mermaid');
    if (code) assert.equal(code.closed, length >= closedFrom, `at ${length}: ${JSON.stringify(whole.slice(0, length))}`);
  }
});

test('prose and code keep their order, with the language of each fence', () => {
  const blocks = blocksOf('Hello\n\n```Python title=x\nprint(1)\n```\n\n| a | b |\n|---|--:|\n| 1 | 2 |');
  assert.deepEqual(blocks.map((block) => block.kind), ['html', 'code', 'html']);
  assert.deepEqual(blocks[1], { kind: 'code', language: 'python', source: 'print(1)', closed: true });
  assert.match(blocks[2].html, /<td align="right">2<\/td>/);
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
  const html = blocksOf('<script>alert(1)</script>\n\n<div onclick="x()">\n\n5 &lt; 6 <style>').map((block) => block.html).join('');
  assert.doesNotMatch(html, /<(script|div|style)/);
});
