// Anthropic's SDK for JavaScript: its tool loop with a model, then a run of the agent, whose reply it prints.
//
// anthropic_sdk.mjs GATEWAY MESSAGE, in a directory into which its tool may write.

import { writeFile } from 'node:fs/promises';
import Anthropic from '@anthropic-ai/sdk';
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema';

const [gateway, message] = process.argv.slice(2);
const model = 'demo';
const max_tokens = 1024;

const tool = betaTool({
  name: 'write_file',
  description: 'Write a file.',
  inputSchema: {
    type: 'object',
    properties: { path: { type: 'string' }, content: { type: 'string' } },
    required: ['path', 'content'],
  },
  run: async ({ path, content }) => {
    await writeFile(path, content);
    return `${path} has ${content.length} characters.`;
  },
});

const turns = new Anthropic({ baseURL: gateway }).beta.messages.toolRunner({
  model,
  max_tokens,
  messages: [{ role: 'user', content: message }],
  tools: [tool],
  stream: true,
});
await turns.runUntilDone();

const agent = new Anthropic({ baseURL: `${gateway}/context/chat` });
const reply = agent.messages.stream({ model, max_tokens, messages: [{ role: 'user', content: 'hello' }] });
console.log(await reply.finalText());
