// waiting_workflow.mjs MODULE: serve a workflow that computes until its run is cancelled, with MODULE of the examples.

const { serve } = await import(process.argv[2]);

const WORKFLOW = {
  name: 'wait_for_cancel',
  title: 'Wait',
  description: 'Computes until its run is cancelled.',
  category: 'project',
  server: 'waiting-js',
  timeout_s: 600,
  parameters_schema: { type: 'object', properties: {} },
};

await serve(WORKFLOW, async ({ signal }) => {
  const aborted = new Promise((resolve) => signal.addEventListener('abort', resolve));
  console.log('computing');
  await aborted;
  console.log('aborted');
});
