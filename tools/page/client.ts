/** A program that uses the packed `@banksman/client`, and the check that its declared types are those of its code. */

import { Api, ApiError, Client, LogRestored, RequestError, connect, newId, type StoredEvent } from '@banksman/client';

import type * as Declared from '@banksman/client';
import * as code from '../../services/gateway/banksman/gateway/interfaces/page/static/client/index.mjs';

/** What the code exports has at least the declared members. */
export const declared: typeof Declared = code;

export async function example(url: string): Promise<string> {
  const client: Client = await connect(url, { token: null });
  const api: Api = client;
  const run = await client.send(await client.createConversation({ title: newId() }), 'hello');
  const seen: StoredEvent[] = [];
  try {
    for await (const event of client.follow(run.conversationId)) {
      seen.push(event);
      if (event.type === 'run.finished') return event.data.content ?? event.data.status;
    }
  } catch (error) {
    if (error instanceof LogRestored) return error.conversationId;
    if (error instanceof RequestError || error instanceof ApiError) return String(error.code);
  }
  const { items } = await api.call('model.list');
  return (await api.conversations()).items[0]?.title ?? items[0]?.id ?? '';
}
