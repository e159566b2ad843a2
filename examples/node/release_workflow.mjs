// A workflow in JavaScript: it asks the user for release notes and writes them into the workspace.
//
// Run it in the directory of `banksman up`:
//
//     npm ci --prefix examples/node && node examples/node/release_workflow.mjs
//
// docs/workflows.md describes the messages.

import { readFileSync } from "node:fs";
import { connect, nkeyAuthenticator } from "@nats-io/transport-node";

const SERVER = "release-js";
const REPLY_TIMEOUT_MS = 5_000;

const WORKFLOW = {
  name: "write_release_notes",
  title: "Write release notes",
  description: "Asks for the notes of a version and writes them into the workspace.",
  category: "project",
  server: SERVER,
  timeout_s: 600,
  parameters_schema: {
    type: "object",
    properties: { version: { type: "string", title: "Version", description: "Such as 1.2.3." } },
    required: ["version"],
    additionalProperties: false,
    "x-positional": ["version"],
  },
};

/** The function of the workflow. It runs from its beginning in each turn, so all effects are steps. */
function writeReleaseNotes(run, { version }) {
  run.progress(1, 2, "Asking for the notes");
  const notes = run.step({
    kind: "input",
    step: "notes",
    message: `What is new in ${version}?`,
    schema: { type: "string", minLength: 1, "x-hint": "multiline" },
  });
  if (notes.is_error) throw new Failed("Without notes there is no release.");
  run.progress(2, 2, "Writing NOTES.md");
  const content = `# ${version}\n\n${notes.content.value}\n`;
  const written = run.step({ kind: "tool", step: "write", tool: "write_file", arguments: { path: "NOTES.md", content } });
  if (written.is_error) throw new Failed(`NOTES.md could not be written: ${written.content.error}`);
  run.outputs.push({ kind: "file", path: "NOTES.md", title: "Release notes" });
  return `The notes of ${version} are in the workspace.`;
}

class Failed extends Error {}

/** Thrown at a step without a recorded result: the turn ends, and the next one has the result. */
class Pending extends Error {}

/** What ends the turns in progress, by tenant and conversation: a run has a conversation of its own. */
const turns = new Map();

async function takeTurn(turn, signal) {
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
      // Until each recorded step has been repeated, the log has the progress already.
      if (Object.keys(turn.results).every((name) => used.has(name))) progress.push({ step, total, message });
    },
  };
  try {
    const content = await writeReleaseNotes(run, turn.parameters);
    return { progress, end: { status: "completed", content, outputs: run.outputs } };
  } catch (error) {
    if (error instanceof Pending) return { progress, steps };
    if (!(error instanceof Failed || signal.aborted)) console.error(error);
    return { progress, end: { status: "failed", content: error instanceof Failed ? error.message : "internal error" } };
  }
}

const nats = await connect({ ...connection(), name: `workflow server ${SERVER}`, maxReconnectAttempts: -1 });
// In one queue group: the processes of the server share its runs.
nats.subscribe(`workflow.turn.${SERVER}.*.*`, {
  queue: SERVER,
  callback: async (_error, message) => {
    const run = runOf(message.subject);
    const abort = new AbortController();
    turns.set(run, abort);
    try {
      message.respond(JSON.stringify(await takeTurn(message.json(), abort.signal)));
    } finally {
      if (turns.get(run) === abort) turns.delete(run);
    }
  },
});
// In no queue group: any of the processes may have the turn.
nats.subscribe(`workflow.cancel.${SERVER}.*.*`, {
  callback: (_error, message) => turns.get(runOf(message.subject))?.abort(),
});
const registered = (
  await nats.request("workflow.register", JSON.stringify({ definition: WORKFLOW }), { timeout: REPLY_TIMEOUT_MS })
).json();
if (registered.type === "error") throw new Error(registered.message);
process.once("SIGTERM", () => nats.drain()).once("SIGINT", () => nats.drain());
console.log(`serving ${WORKFLOW.name}; Ctrl-C ends it`);

function runOf(subject) {
  return subject.split(".").slice(-2).join(".");
}

function connection() {
  if (process.env.NATS_URL) {
    const seed = process.env.NATS_SEED_FILE;
    return { servers: process.env.NATS_URL, ...(seed && { authenticator: identity(seed) }) };
  }
  const directory = process.env.BANKSMAN_DATA_DIR ?? ".banksman";
  const context = JSON.parse(readFileSync(`${directory}/nats-context.json`, "utf8"));
  return { servers: context.url, authenticator: identity(context.nkey) };
}

function identity(seedFile) {
  return nkeyAuthenticator(new TextEncoder().encode(readFileSync(seedFile, "utf8").trim()));
}
