#!/usr/bin/env bash
# Parse every script of the page and of its tests, except vendored ones. All of them are ES modules.
set -euo pipefail
cd "$(dirname "$0")/.."

# One process parses all files: `node --check` takes only one file, and a start costs more than parsing all files.
# Node prints an uncaught error with the line of the script.
parse='
import { readFileSync } from "node:fs";
import { SourceTextModule } from "node:vm";
const files = readFileSync(0, "utf8").split("\0").filter(Boolean);
if (files.length === 0) throw new Error("git lists no script");
for (const file of files) new SourceTextModule(readFileSync(file, "utf8"), { identifier: file });
'
git ls-files -z --cached --others --exclude-standard -- '*.js' '*.mjs' ':!*/vendor/*' |
    node --experimental-vm-modules --no-warnings --input-type=module --eval "$parse"
