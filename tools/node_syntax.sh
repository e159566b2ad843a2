#!/usr/bin/env bash
# Parse every script of the page and of its tests, except vendored ones. All of them are ES modules.
set -euo pipefail
cd "$(dirname "$0")/.."

while IFS= read -r file; do
    node --input-type=module --check <"$file" || { echo "$file does not parse" >&2 && exit 1; }
done < <(git ls-files --cached --others --exclude-standard -- '*.js' '*.mjs' ':!*/vendor/*')
