"""Schemathesis reads our OpenAPI document and sends valid and invalid requests to a whole system.

`make schemathesis` does the same for minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.system import System
from tests.support.timeouts import WAIT_TIMEOUT_S, deadline

pytestmark = pytest.mark.timeout(1800)

EXAMPLES = int(os.environ.get("BANKSMAN_SCHEMATHESIS_EXAMPLES", "0"))
"""Generated requests of each operation; 0 for the short form."""
SEED = os.environ.get("BANKSMAN_FUZZ_SEED", "1")
SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
)
SHORT = ("--phases", "fuzzing", "--max-examples", "2", "--generation-deterministic")
SHORT_WITHOUT = "^/(v1/(chat|messages|responses)|agui|mcp|a2a|context/chat|workflows/parse)"
"""Paths that call a model, or last as long as the client reads."""
LONG_WITHOUT = "^/(mcp|workflows/parse)"
"""A path whose protocol OpenAPI cannot describe, and one that returns 503 without a model, as here."""


async def test_every_response_of_the_described_api_is_documented(system: System, tmp_path: Path) -> None:
    """A39: no undocumented status, no other content, and no status above 499."""
    async with httpx.AsyncClient(base_url=system.url, timeout=WAIT_TIMEOUT_S) as http:
        document = (await http.get("/openapi.json")).json()
    described = tmp_path / "openapi.json"
    described.write_text(json.dumps(_explicit(document)), encoding="utf-8")
    extent = ("--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES)) if EXAMPLES else SHORT
    process = await asyncio.create_subprocess_exec(
        SCHEMATHESIS,
        *("run", described, "--url", system.url, *extent, "--seed", SEED),
        *("--checks", ",".join(CHECKS), "--request-timeout", str(WAIT_TIMEOUT_S), "--continue-on-failure"),
        *(
            "--exclude-path-regex",
            LONG_WITHOUT if EXAMPLES else SHORT_WITHOUT,
            "--suppress-health-check",
            "all",
        ),
        *("--warnings", "off", "--no-color"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with deadline("Schemathesis did not end", 1700):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-6000:]


def _explicit(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document that permits the listed statuses only.

    Event streams are checked elsewhere, because their schema describes one event and not the whole stream.
    """
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("default", None)
            for response in operation["responses"].values():
                response.get("content", {}).get("text/event-stream", {}).pop("schema", None)
    return document
