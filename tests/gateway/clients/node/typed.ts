import WebSocket from 'ws';

import { connect, conversationOf, LogRestored, RequestError } from '@banksman/client';
import type { StoredEvent } from '@banksman/client';

const client = await connect('http://127.0.0.1:8080', { WebSocket, token: () => 'secret', onState: ({ phase }) => console.log(phase) });
const conversation: string = await client.createConversation({ title: 'Typed', settings: { max_iterations: 3 } });
const run = await client.send(conversation, [{ type: 'text', text: 'hello' }], { mode: 'steer', timeoutS: 5 });
console.log(conversationOf(run.runId), (await client.outcome(run, { signal: AbortSignal.timeout(1000) })).content);

for await (const event of client.follow(conversation, { afterSeq: 3, detail: 'full', live: true })) {
  if (event.type === 'message.delta') console.log(event.data.offset + event.data.text.length);
  else if (event.type === 'approval.requested') {
    const shown = event.data.items.map((item) => `${item.name} ${item.preview.command}`);
    const ack = await client.reply(event.data.approval_id, { all: 'approve', digests: event.data.items.map((item) => item.digest) });
    console.log(event.seq, shown, ack.already_resolved);
  }
}

for await (const event of client.follow(conversation)) {
  const stored: StoredEvent = event;
  // @ts-expect-error the iterator has no live output
  if (event.type === 'message.delta') break;
  if (stored.type === 'run.finished') console.log(stored.data.usage?.input_tokens);
}

try {
  // @ts-expect-error a message is text or parts
  await client.send(conversation, 3);
} catch (error) {
  if (error instanceof RequestError) console.log(error.retryAfterS);
  if (error instanceof LogRestored) console.log(error.conversationId);
}
client.close();
