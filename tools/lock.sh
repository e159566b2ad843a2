#!/usr/bin/env bash
# Update requirements/*.txt from pyproject.toml. Arguments go to `uv pip compile`, e.g. --upgrade.
set -euo pipefail
cd "$(dirname "$0")/.."

lock() {
    local name=$1
    shift
    .venv/bin/uv pip compile pyproject.toml --extra "$name" --extra build --output-file "requirements/$name.txt" \
        --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
        --no-header --no-config --quiet "$@"
    { printf '# Written by `make lock` from pyproject.toml.\n'; cat "requirements/$name.txt"; } >"requirements/.$name"
    mv "requirements/.$name" "requirements/$name.txt"
    if grep -n '://' "requirements/$name.txt"; then
        echo "requirements/$name.txt contains a URL; pins must install from any registry" >&2
        return 1
    fi
    echo "requirements/$name.txt: $(grep -c '==' "requirements/$name.txt") packages"
}

# Every other file is constrained to the pins of dev, so the installed versions are the tested ones.
lock dev "$@"
for name in local gateway agent library tool-runner workflows model-server nats; do
    lock "$name" --constraint requirements/dev.txt
done

# The generator of the tested OpenAPI client has its own environment, because its pin of typer conflicts with ours. The
# peer of the benchmarks also has its own environment, because it must not share Banksman's packages.
# So do servers of the Model Context Protocol that tests run, which need other versions of its SDK.
servers=tests/tool_runner/mcp/programs
for own in tests/gateway/http/openapi-client requirements/bench requirements/workspace $servers/python $servers/sqlite; do
    .venv/bin/uv pip compile "$own.in" --output-file "$own.txt" --universal --python-version 3.11 \
        --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-config --quiet "$@"
done
