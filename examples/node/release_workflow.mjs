// A workflow in JavaScript: it asks the user for release notes and writes them into the workspace.
//
// Run it in the directory of `banksman up`:
//
//     npm ci --prefix examples/node && node examples/node/release_workflow.mjs

import { Failed, serve } from './workflow_server.mjs';

const WORKFLOW = {
  name: 'write_release_notes',
  title: 'Write release notes',
  description: 'Asks for the notes of a version and writes them into the workspace.',
  category: 'project',
  server: 'release-js',
  timeout_s: 600,
  parameters_schema: {
    type: 'object',
    properties: { version: { type: 'string', title: 'Version', description: 'Such as 1.2.3.' } },
    required: ['version'],
    additionalProperties: false,
    'x-positional': ['version'],
  },
};

/** The function of the workflow. It runs from its beginning in each turn, so all effects must be steps. */
function writeReleaseNotes(run, { version }) {
  run.progress(1, 2, 'Asking for the notes');
  const notes = run.step({
    kind: 'input',
    step: 'notes',
    message: `What is new in ${version}?`,
    schema: { type: 'string', minLength: 1, 'x-hint': 'multiline' },
  });
  if (notes.is_error) throw new Failed('Without notes there is no release.');
  run.progress(2, 2, 'Writing NOTES.md');
  const content = `# ${version}\n\n${notes.content.value}\n`;
  const written = run.step({
    kind: 'tool',
    step: 'write',
    tool: 'write_file',
    arguments: { path: 'NOTES.md', content },
  });
  if (written.is_error) throw new Failed(`NOTES.md could not be written: ${written.content.error}`);
  run.outputs.push({ kind: 'file', path: 'NOTES.md', title: 'Release notes' });
  return `The notes of ${version} are in the workspace.`;
}

await serve(WORKFLOW, writeReleaseNotes);
