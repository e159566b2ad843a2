"""Only operators choose the addresses of models: nothing that a tenant sends names one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest

from tests.scenarios.conftest import Play
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedReply
from tests.support.timeouts import WAIT_TIMEOUT_S


@dataclass
class Target:
    """A server in the operator's network that a tenant wants to reach."""

    port: int = 0
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@pytest.fixture
async def target() -> AsyncGenerator[Target]:
    found = Target()

    def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.connections += 1
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    async with server:
        yield found


FIELDS = ("base_url", "api_base", "url", "endpoint", "upstream")


async def has_ended(http: httpx.AsyncClient, run_id: str) -> bool:
    return (await http.get(f"/context/runs/{run_id}")).json().get("status") in ("failed", "completed")


async def test_no_field_of_an_assistant_or_run_is_the_address_of_a_model(
    http: httpx.AsyncClient, target: Target, play: Play
) -> None:
    """P9: unknown fields are refused, and a name with an address in it stays a name."""
    model = play(ScriptedReply(text="Here."), at_end="repeat")
    made = (await http.post("/context/conversations", json={"model": model})).json()
    runs = f"/context/conversations/{made['conversation_id']}/runs"
    for field in FIELDS:
        given = {field: target.url}
        bodies: tuple[tuple[str, dict[str, Any]], ...] = (
            ("/context/assistants", {"model": model, **given}),
            ("/context/assistants", {"model": model, "options": given}),
            ("/context/conversations", {"model": model, **given}),
            (runs, {"content": "x", "overrides": given}),
            (runs, {"content": "x", "overrides": {"options": given}}),
        )
        refused = [(await http.post(path, json=body)).status_code for path, body in bodies]
        assert refused == [400] * len(bodies)

    for name in (f"openai:{target.url}", f"anthropic:@127.0.0.1:{target.port}/", f"openai:../{target.url}"):
        sent = await http.post(runs, json={"content": "x", "overrides": {"model": name}})
        if sent.is_success:
            await eventually(partial(has_ended, http, sent.json()["run_id"]), WAIT_TIMEOUT_S)
    assert target.connections == 0


async def test_no_part_of_a_forwarded_request_is_the_address_of_an_upstream(
    http: httpx.AsyncClient, target: Target, play: Play
) -> None:
    """P9: passthrough forwards to the configured upstreams, whatever path, model or header is sent."""
    model = play(ScriptedReply(text="Here."), at_end="repeat").partition(":")[2]
    host = f"127.0.0.1:{target.port}"
    headers = {
        "x-forwarded-host": host,
        "forwarded": f"host={host}",
        "x-base-url": target.url,
        "x-upstream": target.url,
        "openai-base-url": target.url,
    }
    body = {"model": model, "messages": [{"role": "user", "content": "x"}], "base_url": target.url}
    forwarded = await http.post("/v1/chat/completions", json=body, headers=headers)
    assert forwarded.is_success, forwarded.text
    for name in (target.url, f"openai:{target.url}", f"@{host}/"):
        await http.post("/v1/chat/completions", json={**body, "model": name})
    for path in (
        f"/v1/{target.url}",
        f"/v1//{host}/",
        f"/v1/@{host}/",
        f"/v1/..%2f..%2f{host}",
        f"/v1/%5c{host}",
    ):
        await http.post(path, json=body)
    assert target.connections == 0
