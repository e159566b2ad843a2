"""Every endpoint responds while the broker does not."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import httpx
from tests.gateway.conftest import gateway_on
from tests.support.fixtures import settings_of
from tests.support.lossy import lossy_wire
from tests.support.nats import Broker
from tests.support.polling import eventually

from banksman.bus.connection import Bus
from banksman.cli.machine import free_port
from banksman.gateway.interfaces.websocket.connection import INFLIGHT

LIMIT_S = 10.0
GONE_LIMIT_S = 1.0
"""Maximum seconds of a response while the connection is known to be gone, and of readiness always."""
AT_A_TIME = 40
"""Concurrent requests: the responses to all hundred at once would take the gateway seconds of CPU."""
FEW = 8
"""Concurrent requests whose responses take the gateway less than a tenth of a second."""
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
        requests = await described_requests(http)
        own_nats.pause()
        try:
            found = await responses(http, requests, AT_A_TIME)
        finally:
            own_nats.resume()
    assert len([body for _, body in found.values() if body.startswith("503")]) > 40
    assert {request: took for request, (took, _) in found.items() if took > LIMIT_S} == {}
    # The agent card names the address of the gateway.
    bodies = {request: body.replace(gateway.url, "") for request, (_, body) in found.items()}
    assert {request: body for request, body in bodies.items() if INTERNAL.search(body)} == {}


async def test_every_endpoint_responds_at_once_while_the_connection_is_gone(
    own_nats: Broker, own_bus: Bus, tenant: str
) -> None:
    """The health of the process too: probes have limits of one second."""
    async with gateway_on(own_nats, own_bus, tenant) as gateway, gateway.http as http:
        requests = await described_requests(http)
        own_nats.kill()
        try:
            found = await responses(http, [("get", "/readyz", {}), *requests], FEW)
        finally:
            own_nats.start()
        await eventually(lambda: is_ready(http))
    assert len([body for _, body in found.values() if body.startswith("503")]) > 40
    assert {request: took for request, (took, _) in found.items() if took > GONE_LIMIT_S} == {}


async def test_readiness_responds_in_time_while_the_broker_is_frozen(
    own_nats: Broker, own_bus: Bus, tenant: str
) -> None:
    port = free_port()
    async with gateway_on(own_nats, own_bus, tenant, health_port=port) as gateway, gateway.http as http:
        operators = f"http://127.0.0.1:{port}/readyz"
        own_nats.pause()
        try:
            paths = ("/readyz", operators, "/readyz")
            found = await responses(http, [("get", path, {}) for path in paths], 1)
        finally:
            own_nats.resume()
        await eventually(lambda: is_ready(http))
    assert {path: body[:3] for (_, path), (_, body) in found.items()} == dict.fromkeys(paths, "503")
    assert {path: took for path, (took, _) in found.items() if took > GONE_LIMIT_S} == {}


async def test_a_websocket_refuses_all_waiting_requests_at_once_while_the_connection_is_gone(
    own_nats: Broker, own_bus: Bus, tenant: str
) -> None:
    """A cancel and a decision too, which are not behind the requests of other conversations."""
    async with gateway_on(own_nats, own_bus, tenant) as gateway, gateway.socket() as socket:
        conversations = [await socket.create() for _ in range(3)]
        own_nats.kill()
        try:
            began = clock_s()
            sent = [
                await socket.send("chat.send", conversation_id=conversations[number % 3], content="x")
                for number in range(INFLIGHT - 4)
            ]
            run = f"{conversations[0]}-{'0' * 12}"
            sent.append(await socket.send("run.cancel", run_id=run))
            sent.append(await socket.send("approval.reply", approval_id=f"{run}-{'0' * 12}", all="approve"))
            waiting = set(sent)
            while waiting:
                refused = await socket.until(lambda frame: frame.get("reply_to") in waiting)
                assert (refused["type"], refused["retryable"]) == ("error", True), refused
                waiting.discard(refused["reply_to"])
            took_s = clock_s() - began
        finally:
            own_nats.start()
    assert took_s < GONE_LIMIT_S


async def test_a_decision_and_a_cancel_are_not_behind_a_request_of_another_conversation(
    own_nats: Broker, own_bus: Bus, tenant: str
) -> None:
    async with (
        lossy_wire(own_nats.port) as wire,
        gateway_on(
            own_nats, own_bus, tenant, nats=settings_of(own_nats).model_copy(update={"url": wire.url})
        ) as gateway,
        gateway.socket() as socket,
    ):
        slow, quick = await socket.create(), await socket.create()
        started = await socket.request("chat.send", conversation_id=quick, content="x")
        wire.loses = lambda _, payload: slow.encode() in payload
        behind = await socket.send("chat.send", conversation_id=slow, content="x")
        cancelled = await socket.request("run.cancel", run_id=started["run_id"])
        assert behind not in [frame.get("reply_to") for frame in socket.frames]
        wire.loses = lambda *_: False
        assert (cancelled["type"], cancelled["run_id"]) == ("ack", started["run_id"])


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


async def is_ready(http: httpx.AsyncClient) -> bool:
    return (await http.get("/readyz")).is_success


Request = tuple[str, str, Any]
"""Method, path and body."""


async def described_requests(http: httpx.AsyncClient) -> list[Request]:
    """Return a request to each endpoint that needs NATS."""
    conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
    document = (await http.get("/openapi.json")).json()
    return [
        (method, path.format_map(Ids(conversation)), SENT.get(path, {}))
        for path, operations in document["paths"].items()
        for method in operations
        if not path.startswith(("/v1/models", "/v1/messages", "/v1/responses", "/v1/chat/completions"))
    ]


async def responses(
    http: httpx.AsyncClient, requests: list[Request], at_a_time: int
) -> dict[tuple[str, str], tuple[float, str]]:
    """Return the seconds, and the status and text, of the response to each request."""
    turns = asyncio.Semaphore(at_a_time)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(timed(turns, http, *request)) for request in requests]
    return {request[:2]: task.result() for request, task in zip(requests, tasks, strict=True)}


async def timed(
    turns: asyncio.Semaphore, http: httpx.AsyncClient, method: str, path: str, body: Any
) -> tuple[float, str]:
    """Return the seconds until a response, and its status and text."""
    sends = method in ("post", "put", "patch")
    async with turns:
        began = clock_s()
        response = await http.request(method, path, **({"json": body} if sends else {}))
        return round(clock_s() - began, 1), f"{response.status_code} {response.text}"
