// Serves a workflow with the plain NATS client; docs/workflows.md describes the messages.

import { connect } from '@nats-io/transport-node';

import { connection } from './connection.mjs';

const REPLY_TIMEOUT_MS = 5_000;

/** Thrown by a workflow to end its run as failed; the message is the result. */
export class Failed extends Error {}

/** Thrown at a step without a recorded result: the turn ends, and the next turn has the result. */
class Pending extends Error {}

/** The abort controllers of the turns in progress, by tenant and conversation; each run has its own conversation. */
const turns = new Map();

async function takeTurn(workflow, turn, signal) {
  const steps = [];
  const used = new Set();
  const progress = [];
  const run = {
    outputs: [],
    /** Aborted when the run is cancelled: pass it on, for example to `fetch`. */
    signal,
    step(request) {
      signal.throwIfAborted();
      used.add(request.step);
      const result = turn.results[request.step];
      if (result) return result;
      steps.push(request);
      throw new Pending();
    },
    progress(step, total, message) {
      // Until all recorded steps have been repeated, the log already has the progress.
      if (Object.keys(turn.results).every((name) => used.has(name))) progress.push({ step, total, message });
    },
  };
  try {
    const content = await workflow(run, turn.parameters);
    return { progress, end: { status: 'completed', content, outputs: run.outputs } };
  } catch (error) {
    if (error instanceof Pending) return { progress, steps };
    if (!(error instanceof Failed || signal.aborted)) console.error(error);
    return {
      progress,
      end: { status: 'failed', content: error instanceof Failed ? error.message : 'internal error' },
    };
  }
}

/**
 * Register a workflow, and serve its turns until SIGTERM or SIGINT. `workflow(run, parameters)` returns the text of the
 * result or a promise of it. It runs from its beginning in each turn, so all effects must be steps.
 */
export async function serve(definition, workflow) {
  const { name, server } = definition;
  const nats = await connect({
    ...connection(),
    name: `workflow server ${server}`,
    maxReconnectAttempts: -1,
  });
  // In one queue group: the processes of the server share its runs.
  nats.subscribe(`workflow.turn.${server}.*.*`, {
    queue: server,
    callback: async (_error, message) => {
      const run = runOf(message.subject);
      const abort = new AbortController();
      turns.set(run, abort);
      try {
        message.respond(JSON.stringify(await takeTurn(workflow, message.json(), abort.signal)));
      } finally {
        if (turns.get(run) === abort) turns.delete(run);
      }
    },
  });
  // In no queue group, because any of the processes may have the turn.
  nats.subscribe(`workflow.cancel.${server}.*.*`, {
    callback: (_error, message) => turns.get(runOf(message.subject))?.abort(),
  });
  const registered = (
    await nats.request('workflow.register', JSON.stringify({ definition }), { timeout: REPLY_TIMEOUT_MS })
  ).json();
  if (registered.type === 'error') throw new Error(registered.message);
  process.once('SIGTERM', () => nats.drain()).once('SIGINT', () => nats.drain());
  console.log(`serving ${name}; Ctrl-C ends it`);
}

function runOf(subject) {
  return subject.split('.').slice(-2).join('.');
}
