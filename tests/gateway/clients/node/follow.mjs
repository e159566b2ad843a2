/** Follow a conversation and send messages in another one. Writes a line of JSON for each event and each reply. */

import { createInterface } from 'node:readline';
import WebSocket from 'ws';

import { connect } from '@banksman/client';

const [url, token, followed, other, lastSeq] = process.argv.slice(2);
const print = (kind, value) => console.log(JSON.stringify({ kind, value }));
/** A clock that runs ten times as fast. */
const clock = { after: (seconds, action) => setTimeout(action, seconds * 100), cancel: clearTimeout };

const client = await connect(url, { WebSocket, token, clock });
const follow = async (options) => {
  for await (const event of client.follow(followed, options)) {
    print(options.detail, [event.seq, event.type]);
    if (event.seq >= Number(lastSeq)) return;
  }
};
const send = async () => {
  for await (const text of createInterface({ input: process.stdin }))
    print('sent', (await client.send(other, text)).runId);
};
print('ready', client.welcome.user);
await Promise.all([follow({ detail: 'steps' }), follow({ detail: 'final', afterSeq: 2 }), send()]);
client.close();
