// Reads one stream per model named on the command line with OpenAI's SDK, and prints the parsed results.
// Usage: node read_streams.mjs BASE_URL MODEL...

import OpenAI from 'openai';

const [baseURL, ...models] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: 'any', maxRetries: 0 });
const found = {};

for (const model of models) {
  try {
    const stream = client.chat.completions.stream({
      model,
      messages: [{ role: 'user', content: 'hi' }],
      stream_options: { include_usage: true },
    });
    const completion = await stream.finalChatCompletion();
    const [choice] = completion.choices;
    found[model] = {
      id: typeof completion.id,
      role: choice.message.role,
      content: choice.message.content ?? '',
      finish_reason: choice.finish_reason,
      usage: completion.usage?.total_tokens ?? null,
      calls: (choice.message.tool_calls ?? []).map((call) => [
        call.type,
        typeof call.id,
        call.function.name,
        call.function.arguments,
      ]),
    };
  } catch (error) {
    found[model] = { error: error.error?.message ?? String(error), code: error.code ?? null };
  }
}

console.log(JSON.stringify(found));
