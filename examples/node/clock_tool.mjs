// A tool in JavaScript: the time in a time zone, served with the plain NATS client.
//
// Run it in the directory of `banksman up`:
//
//     npm ci --prefix examples/node && node examples/node/clock_tool.mjs
//
// docs/tools-over-nats.md describes the messages.

import { createHash, randomInt } from 'node:crypto';
import { connect, headers } from '@nats-io/transport-node';

import { connection } from './connection.mjs';

const SERVER = 'clock';
const RENEW_EVERY_MS = 1_000;
const STOP_AFTER_MS = 2_000;
const REGISTER_EVERY_MS = 10_000;
const REPLY_TIMEOUT_MS = 5_000;
const CAPACITY = 64;
const MAX_REMEMBERED = 10_000;

const TOOL = {
  name: 'get_current_time',
  description: 'Get the current date and time in a time zone.',
  input_schema: {
    type: 'object',
    properties: { timezone: { type: 'string', description: 'IANA name, such as "Europe/Oslo".' } },
    required: ['timezone'],
    additionalProperties: false,
  },
  category: 'time',
  timeout_s: 10,
  server: SERVER,
};

class InvalidArguments extends Error {}

async function getCurrentTime({ timezone }, signal) {
  signal.throwIfAborted();
  try {
    const format = new Intl.DateTimeFormat('sv-SE', {
      timeZone: timezone,
      dateStyle: 'short',
      timeStyle: 'long',
    });
    return { timezone, time: format.format(new Date()) };
  } catch {
    throw new InvalidArguments(`timezone: ${JSON.stringify(timezone)} is not the name of a time zone`);
  }
}

/** Identifies this process among the processes of the server. */
const epoch = randomInt(2 ** 47);
const active = new Map(); // attempt -> AbortController
const ended = new Set();
let renewedAt = -Infinity;
let draining = false;

const hasLease = () => performance.now() - renewedAt < STOP_AFTER_MS;
const nats = await connect({ ...connection(), name: `tool server ${SERVER}`, maxReconnectAttempts: -1 });

const tenant = await register();
const leaseKey = ['$KV.runners', SERVER, ...(tenant ? [tenant] : []), epoch].join('.');
let revision = 0;
serve(`tool.call.${SERVER}.*.*`, onCall);
serve(`tool.cancel.${SERVER}.*.*`, onCancel);
await nats.flush();
await renew();
await register(); // the registry may have withdrawn the tool in between
setInterval(renew, RENEW_EVERY_MS);
setInterval(() => register().catch(logError), REGISTER_EVERY_MS);
process.once('SIGTERM', end).once('SIGINT', end);
console.log(`serving ${TOOL.name}; Ctrl-C ends it`);

/** Register the tool; returns the tenant whose models may call it, or null for all tenants. */
async function register() {
  const body = JSON.stringify({ definition: TOOL });
  const reply = (await nats.request('tool.register', body, { timeout: REPLY_TIMEOUT_MS })).json();
  if (reply.type === 'error') throw new Error(`${TOOL.name} is not registered: ${reply.message}`);
  return reply.tenant;
}

/** Take or renew the lease by compare-and-set on the process's key. */
async function renew() {
  const sentAt = performance.now();
  const lease = {
    runner: SERVER,
    runner_epoch: epoch,
    load: active.size,
    workspaces: false,
    serving: !draining,
  };
  try {
    const ack = await store(leaseKey, lease, `lease:${epoch}:${sentAt}`, {
      'Nats-Expected-Last-Subject-Sequence': String(revision),
    });
    if (ack.error) throw new Error(ack.error.description);
    revision = ack.seq;
    renewedAt = sentAt;
  } catch (error) {
    logError(error);
    // Without the lease, other processes may declare the calls of this one lost.
    if (!hasLease()) process.exit(1);
  }
}

/** Publish to a stream; returns its acknowledgement, with `error` if the stream refused it. */
async function store(subject, body, id, more = {}) {
  const sent = headers();
  sent.set('Nats-Msg-Id', `${subject}:${id}`);
  for (const [name, value] of Object.entries(more)) sent.set(name, value);
  const reply = await nats.request(subject, JSON.stringify(body), { timeout: RENEW_EVERY_MS, headers: sent });
  return reply.json();
}

function serve(subject, handler) {
  nats.subscribe(subject, { callback: (error, message) => (error ? logError(error) : handler(message)) });
}

/** Every process of the server receives each call; the one with its epoch responds. */
function onCall(message) {
  const request = message.json();
  if (request.runner_epoch !== epoch) return;
  const reply = admit(request, message.subject);
  message.respond(JSON.stringify(reply));
  if (reply.answer === 'accepted' && !active.has(request.attempt)) perform(request).catch(logError);
}

function admit(request, subject) {
  const { tenant, conversation_id, attempt, call, digest } = request;
  if (subject !== `tool.call.${SERVER}.${tenant}.${conversation_id}`)
    return refused('The subject does not match the call.');
  if (call.name !== TOOL.name) return refused(`${SERVER} has no tool ${call.name}.`);
  if (ended.has(attempt)) return { answer: 'done' };
  if (active.has(attempt)) return { answer: 'accepted' };
  if (digest !== digestOf(call)) return refused('The call is not the one that was approved.');
  if (draining || !hasLease() || active.size >= CAPACITY) return { answer: 'busy' };
  return { answer: 'accepted' };
}

function refused(reason) {
  return { answer: 'refused', reason };
}

function onCancel(message) {
  const { attempt, reason } = message.json();
  active.get(attempt)?.abort(reason ?? 'cancelled');
}

/** Start a call at most once, run it, and store its one result. */
async function perform(request) {
  const { attempt, call } = request;
  const stop = new AbortController();
  active.set(attempt, stop);
  try {
    if ((call.idempotent || (await mayStart(request))) && hasLease())
      await finish(request, await run(request, stop));
    remember(attempt);
  } finally {
    active.delete(attempt);
  }
}

/** Returns true only if this request stored the start. */
async function mayStart({ tenant, conversation_id, attempt }) {
  const start = { conversation_id, attempt, runner: SERVER, runner_epoch: epoch, ts: now() };
  const ack = await store(`tool.started.${tenant}.${attempt}`, start, `${SERVER}:${epoch}`);
  return !ack.error && !ack.duplicate;
}

async function run({ call, deadline }, stop) {
  const startedAt = new Date();
  const limit = Math.min(call.timeout_s * 1_000, Date.parse(deadline) - startedAt.getTime());
  const timer = setTimeout(() => stop.abort('timeout'), Math.max(limit, 0));
  const aborted = new Promise((_, reject) =>
    stop.signal.addEventListener('abort', () => reject(stop.signal.reason)),
  );
  let outcome;
  try {
    const value = await Promise.race([getCurrentTime(call.arguments, stop.signal), aborted]);
    outcome = { content: { success: true, ...value } };
  } catch (error) {
    outcome = failure(error, limit);
  } finally {
    clearTimeout(timer);
  }
  return {
    tool_call_id: call.id,
    runner: SERVER,
    started_at: startedAt.toISOString(),
    duration_ms: Date.now() - startedAt.getTime(),
    ...outcome,
  };
}

function failure(error, limit) {
  const [kind, text] =
    error === 'timeout'
      ? ['timeout', `${TOOL.name} did not end within its time-out of ${limit / 1_000} s`]
      : error === 'cancelled'
        ? ['cancelled', `${TOOL.name} was ended: cancelled`]
        : error instanceof InvalidArguments
          ? ['invalid_arguments', `Invalid arguments of ${TOOL.name}: ${error.message}`]
          : ['tool_error', `${TOOL.name} failed: ${error}`];
  return { content: { success: false, error: text, error_kind: kind }, is_error: true, error_kind: kind };
}

/** Store the result; safe to repeat because its message id is fixed. */
async function finish({ tenant, conversation_id, attempt }, result) {
  while (hasLease()) {
    try {
      await store(
        `tool.result.${tenant}.${attempt}`,
        { conversation_id, attempt, result },
        `${SERVER}:${epoch}`,
      );
      return;
    } catch (error) {
      logError(error);
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  }
}

function remember(attempt) {
  ended.add(attempt);
  if (ended.size > MAX_REMEMBERED) ended.delete(ended.values().next().value);
}

/** SHA-256 over `[name, arguments]` in canonical JSON. */
function digestOf({ name, arguments: given }) {
  return createHash('sha256')
    .update(JSON.stringify(sorted([name, given])))
    .digest('hex');
}

function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted);
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(
    Object.keys(value)
      .sort()
      .map((key) => [key, sorted(value[key])]),
  );
}

/** Accept no more calls, let running calls end, and release the lease. */
async function end() {
  draining = true;
  await renew();
  while (active.size > 0 && hasLease()) await new Promise((resolve) => setTimeout(resolve, 50));
  const marker = { 'KV-Operation': 'DEL', 'Nats-TTL': '1h' };
  await store(leaseKey, '', `end:${epoch}`, marker).catch(logError);
  await nats.close();
  process.exit(0);
}

function now() {
  return new Date().toISOString();
}

function logError(error) {
  console.error(String(error?.message ?? error));
}
