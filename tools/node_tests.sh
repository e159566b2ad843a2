#!/usr/bin/env bash
# Run the page's unit tests: tests/**/*.test.{js,mjs}.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t files < <(find tests -name '*.test.js' -o -name '*.test.mjs' | sort)
[ ${#files[@]} -eq 0 ] || node --test "${files[@]}"
