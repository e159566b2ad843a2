// Parse the AsyncAPI document of standard input; print its operations and its errors.
import { readFileSync } from 'node:fs';
import { Parser } from '@asyncapi/parser';

const WARNING = 1;
const { document, diagnostics } = await new Parser().parse(readFileSync(0, 'utf8'));
const problems = diagnostics
  .filter((found) => found.severity <= WARNING)
  .map((found) => `${found.path.join('/')}: ${found.message}`);
const operations = (document?.operations().all() ?? []).map((operation) => operation.id());
console.log(JSON.stringify({ problems, operations }));
