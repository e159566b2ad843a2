// Chat over NATS in JavaScript, with the plain NATS client, and approve all calls of the run.
//
// Run it in the directory of `banksman up`:
//
//     npm ci --prefix examples/node && node examples/node/chat.mjs local 'run `ls`'
//
// BANKSMAN_MODEL selects a model (`provider:model`). docs/clients.md describes the requests.

import { randomUUID } from 'node:crypto';
import { connect, createInbox, headers } from '@nats-io/transport-node';

import { connection } from './connection.mjs';

const FOLLOW_S = 60;
const SILENCE_MS = 5_000;
const PAUSE_MS = 1_000;
const TIMEOUT_MS = 10_000;

const [tenant = 'local', ...words] = process.argv.slice(2);
const nats = await connect({ ...connection(), name: 'chat.mjs', maxReconnectAttempts: -1 });
try {
  process.exitCode = await chat(words.join(' ') || 'Hello! What can you do?');
} finally {
  await nats.close();
}

async function chat(content) {
  const { conversation_id: conversation } = await request('conversation.create', {
    title: content.slice(0, 60),
    model: process.env.BANKSMAN_MODEL,
  });
  const { run_id: run } = await request(`chat.send.${conversation}`, { content });
  for await (const { type, run_id: of, data } of events(conversation)) {
    if (type === 'tool_call.requested') {
      console.log(`… ${data.name} ${JSON.stringify(data.arguments)}`);
    } else if (type === 'approval.requested') {
      const { outcome } = await request(`approval.reply.${data.approval_id}`, { all: 'approve' });
      console.log(`… ${outcome}`);
    } else if (type === 'run.finished' && of === run) {
      console.log(data.content);
      return data.status === 'completed' ? 0 : 1;
    }
  }
}

/** Return the reply to a request. Throw if it is an error. */
async function request(action, body) {
  const head = headers();
  head.set('Banksman-Request-Id', randomUUID());
  const options = { timeout: TIMEOUT_MS, headers: head };
  const reply = await nats.request(`api.${tenant}.${action}`, JSON.stringify(body), options);
  const value = reply.json();
  if (value.type === 'error') throw new Error(`${value.code}: ${value.message}`);
  return value;
}

/** Yield each event of a conversation once, stored events first, without end. */
async function* events(conversation) {
  let last = 0;
  while (true) {
    for await (const frame of replay(conversation, last)) {
      // Deltas have no number: the event `message.completed` replaces them.
      if (frame.seq > last) {
        last = frame.seq;
        yield frame;
      }
    }
  }
}

/** Yield the frames of one request, which end with an empty message, or with silence if the gateway is lost. */
async function* replay(conversation, after) {
  const inbox = createInbox();
  const wait = FOLLOW_S * 1000 + SILENCE_MS;
  const frames = nats.subscribe(inbox);
  const silence = setTimeout(() => frames.unsubscribe(), wait);
  try {
    const body = { after_seq: after, follow_s: FOLLOW_S, detail: 'steps' };
    nats.publish(`api.${tenant}.replay.${conversation}`, JSON.stringify(body), { reply: inbox });
    for await (const message of frames) {
      // No gateway serves the request; the server reports this at once.
      if (message.headers?.code === 503) await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      if (message.data.length === 0) return;
      const frame = message.json();
      if (frame.type === 'error') throw new Error(`${frame.code}: ${frame.message}`);
      yield frame;
    }
  } finally {
    clearTimeout(silence);
    frames.unsubscribe();
  }
}
