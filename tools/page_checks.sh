#!/usr/bin/env bash
# Check the page's scripts and styles: formatted with Prettier (`--write` formats them), with types that TypeScript
# accepts, without long lines and unused classes. Prettier parses every script, also those of tests.
set -euo pipefail
cd "$(dirname "$0")/.."

# The packages are installed once for each state of the lock file.
lock=$(sha256sum tools/page/package-lock.json | cut -c 1-16)
packages=${XDG_CACHE_HOME:-$HOME/.cache}/banksman/page-checks-$lock
if [ ! -d "$packages" ]; then
    partial=$(mktemp -d "${TMPDIR:-/tmp}/page-checks.XXXXXX")
    cp tools/page/package.json tools/page/package-lock.json "$partial"
    npm ci --prefix "$partial" --ignore-scripts --no-audit --no-fund --prefer-offline >/dev/null
    mkdir -p "$(dirname "$packages")"
    mv -T "$partial" "$packages" 2>/dev/null || [ -d "$packages" ]
fi

git ls-files -z --cached --others --exclude-standard -- '*.js' '*.mjs' '*.css' ':!*/vendor/*' |
    xargs -0 "$packages/node_modules/.bin/prettier" "${1:---check}" --log-level warn
[ "${1:-}" = --write ] && exit
node tools/page/styles.mjs
node tools/page/lines.mjs
node tools/page/types.mjs "$packages"
