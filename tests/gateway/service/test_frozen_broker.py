"""Every endpoint responds while the broker does not."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import httpx
from tests.gateway.conftest import gateway_on
from tests.support.nats import Broker
from tests.support.polling import eventually

from banksman.bus.connection import Bus

LIMIT_S = 10.0
AT_A_TIME = 40
"""Concurrent requests: the responses to all hundred at once would take the gateway seconds of CPU."""
SENT: dict[str, Any] = {
    "/context/conversations": {"title": "t"},
    "/context/conversations/{conversation_id}": {"title": "t"},
    "/context/conversations/{conversation_id}/runs": {"content": "hi"},
    "/v1/chat": {"content": "hi"},
    "/context/chat": {"content": "hi"},
    "/context/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "/context/chat/messages": {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
    },
    "/context/inputs/{request_id}": {"value": 1},
    "/context/keys": {"user": "u"},
    "/context/approvals/{approval_id}": {"all": "approve"},
    "/context/runs/{run_id}/cancel": {},
    "/v1/system-prompts": {"content": "x"},
    "/v1/system-prompts/{prompt_id}": {"content": "x"},
    "/context/assistants": {"id": "a"},
    "/context/assistants/{assistant_id}": {"name": "x"},
    "/workflows/{name}/runs": {"parameters": {}},
    "/context/schedules": {"start": {"type": "prompt", "content": "hi"}, "cron": "0 * * * *"},
    "/context/schedules/{schedule_id}": {"start": {"type": "prompt", "content": "hi"}, "cron": "0 * * * *"},
}
INTERNAL = re.compile(r"\$JS|\$KV|[0-9a-f]{32}|STREAM\.|nats:|127\.0\.0\.1")


async def test_every_endpoint_responds_while_the_broker_is_frozen(
    own_nats: Broker, own_bus: Bus, tenant: str
) -> None:
    """Within ten seconds, with a sentence that names nothing internal."""
    async with gateway_on(own_nats, own_bus, tenant) as gateway, gateway.http as http:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        document = (await http.get("/openapi.json")).json()
        requests = [
            (method, path.format_map(Ids(conversation)), SENT.get(path, {}))
            for path, operations in document["paths"].items()
            for method in operations
            if not path.startswith(("/v1/models", "/v1/messages", "/v1/responses", "/v1/chat/completions"))
        ]
        own_nats.pause()
        try:
            async with asyncio.TaskGroup() as group:
                turns = asyncio.Semaphore(AT_A_TIME)
                tasks = [group.create_task(timed(turns, http, *request)) for request in requests]
        finally:
            own_nats.resume()
    found = {request[:2]: task.result() for request, task in zip(requests, tasks, strict=True)}
    assert len([body for _, body in found.values() if body.startswith("503")]) > 40
    assert {request: took for request, (took, _) in found.items() if took > LIMIT_S} == {}
    # The agent card names the address of the gateway.
    bodies = {request: body.replace(gateway.url, "") for request, (_, body) in found.items()}
    assert {request: body for request, body in bodies.items() if INTERNAL.search(body)} == {}


async def test_lists_are_refused_in_time_while_the_broker_is_down(
    own_nats: Broker, own_bus: Bus, tenant: str
) -> None:
    paths = ("/context/remembered", "/context/secrets", "/context/keys", "/context/webhooks")
    async with gateway_on(own_nats, own_bus, tenant) as gateway, gateway.http as http:
        own_nats.kill()
        try:
            async with asyncio.TaskGroup() as group:
                turns = asyncio.Semaphore(AT_A_TIME)
                tasks = [group.create_task(timed(turns, http, "get", path, {})) for path in paths]
        finally:
            own_nats.start()

        async def is_back() -> bool:
            return (await http.get(paths[0])).is_success

        await eventually(is_back)
    results = dict(zip(paths, (task.result() for task in tasks), strict=True))
    refused = {path: result for path, result in results.items() if result[1].startswith("503")}
    assert {path: result for path, result in refused.items() if result[0] <= LIMIT_S} == results


class Ids(dict[str, str]):
    def __init__(self, conversation: str) -> None:
        super().__init__(conversation_id=conversation, run_id=f"{conversation}-r")
        self._run = f"{conversation}-r"

    def __missing__(self, name: str) -> str:
        return f"{self._run}-a" if name in ("approval_id", "request_id") else "a"


def clock_s() -> float:
    """Return seconds since some moment, without those in which this thread waited for a CPU.

    The gateway and its clients share the thread, which the rest of the suite slows down.
    """
    _, queued_ns, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return time.monotonic() - int(queued_ns) / 1e9


async def timed(
    turns: asyncio.Semaphore, http: httpx.AsyncClient, method: str, path: str, body: Any
) -> tuple[float, str]:
    """Return the seconds until a response, and its status and text."""
    sends = method in ("post", "put", "patch")
    async with turns:
        began = clock_s()
        response = await http.request(method, path, **({"json": body} if sends else {}))
        return round(clock_s() - began, 1), f"{response.status_code} {response.text}"
