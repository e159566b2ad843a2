// Runs one thread with AG-UI's client for JavaScript, approves each interrupt with edited arguments, and prints
// the result as the client parsed it. Usage: node thread.mjs URL MODEL TEXT COMMAND

import { HttpAgent } from '@ag-ui/client';

const [url, model, text, command] = process.argv.slice(2);
const agent = new HttpAgent({ url });
const events = [];
const seen = { onEvent: ({ event }) => void events.push(event.type) };
const forwardedProps = { banksman: { overrides: { model } } };

agent.addMessage({ id: 'u1', role: 'user', content: text });
await agent.runAgent({ runId: 'r1', forwardedProps }, seen);
const interrupts = agent.pendingInterrupts;
const resume = interrupts.map(({ id }) => ({
  interruptId: id,
  status: 'resolved',
  payload: { approved: true, arguments: { command } },
}));
const resumed = await agent.runAgent({ runId: 'r2', resume }, seen);

// Another client of the same thread, which has only its id.
const other = new HttpAgent({ url, threadId: agent.threadId });
await other.runAgent({ runId: 'load' });

console.log(
  JSON.stringify({
    events,
    interrupts,
    result: resumed.result,
    state: agent.state,
    messages: agent.messages,
    loaded: other.messages,
    left: agent.pendingInterrupts,
  }),
);
