"""The adapter of the OpenAI format on the wire: events, connections, proxies, refusals."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from tests.agent.providers.histories import user
from tests.support.deltas import Shown

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.agent.providers.faults import TransientFault
from banksman.agent.providers.streams import MAX_EVENT_BYTES, Events
from banksman.contracts.errors import ProviderFailed

STREAM = 'data: {"a": "é"}\n\n: a comment\n\nevent: x\nid: 1\n\ndata:b\ndata: c\n\ndata: d\n\ndata: cut off\n'
DATA = ['{"a": "é"}'.encode(), b"b\nc", b"d"]

REPLY = b'data: {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_events_are_read_however_a_stream_is_divided(line_end: str) -> None:
    stream = STREAM.replace("\n", line_end).encode()

    for size in range(1, len(stream) + 1):
        events = Events()
        pieces = (stream[at : at + size] for at in range(0, len(stream), size))
        assert [data for piece in pieces for data in events.complete(piece)] == DATA


def test_an_endless_event_is_a_transient_fault_and_many_complete_events_are_read() -> None:
    events, piece = Events(), b"x" * (1024 * 1024)
    for _ in range(2 * MAX_EVENT_BYTES // len(piece)):
        assert list(events.complete(b"data: " + piece + b"\n\n")) == [piece]

    with pytest.raises(TransientFault, match="more than"):
        for _ in range(MAX_EVENT_BYTES // len(piece) + 1):
            list(events.complete(piece))


@asynccontextmanager
async def upstream(
    handler: Callable[[], Awaitable[web.StreamResponse]] | None = None,
) -> AsyncGenerator[tuple[str, list[web.BaseRequest]]]:
    """A server that replies to any request; its address and the requests that it received."""
    requests: list[web.BaseRequest] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        requests.append(request)
        await request.read()
        if handler is not None:
            return await handler()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(REPLY)
        return response

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", requests
    finally:
        await runner.cleanup()


async def complete(
    base_url: str, times: int = 1, deltas: Shown | None = None, **settings: object
) -> ModelReply:
    """Send the same request one after another over one provider; return the last reply."""
    fields = {"openai_base_url": base_url, "max_attempts": 1, "max_wait_s": 0, **settings}
    providers = Providers(ProviderSettings.model_validate(fields))
    try:
        request = ModelRequest("m", "", (user("go"),), ())
        for _ in range(times - 1):
            await providers.choose("openai:m")[0].complete(request, deltas=Shown(), deadline_s=30)
        return await providers.choose("openai:m")[0].complete(
            request, deltas=deltas or Shown(), deadline_s=30
        )
    finally:
        await providers.close()


async def test_requests_one_after_another_use_one_connection() -> None:
    async with upstream() as (url, requests):
        await complete(url, times=4)

    assert len({request.transport for request in requests}) == 1


async def test_a_request_has_the_key_and_the_path_of_the_format() -> None:
    async with upstream() as (url, requests):
        await complete(f"{url}/v1/", openai_api_key="sk-test")

    assert requests[0].path == "/v1/chat/completions"
    assert requests[0].headers["authorization"] == "Bearer sk-test"
    assert requests[0].content_type == "application/json"


async def test_requests_go_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with upstream() as (proxy, requests):
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", proxy)
        assert (await complete("http://model.invalid/v1")).text == "x"

    assert requests[0].headers["host"] == "model.invalid"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"error": {"message": "No such model."}}', "404 Not Found: No such model."),
        ('{"error": "No such model."}', "404 Not Found: No such model."),
        ('{"message": "No such model."}', "404 Not Found: No such model."),
        ("<h1>No</h1>", "404 Not Found: <h1>No</h1>"),
        ("[" * 100_000, "404 Not Found: [[["),
        ("", "404 Not Found"),
    ],
)
async def test_a_refusal_is_reported_in_the_servers_words(body: str, text: str) -> None:
    async def refuse() -> web.StreamResponse:
        return web.Response(status=404, text=body)

    async with upstream(refuse) as (url, _):
        with pytest.raises(ProviderFailed) as failure:
            await complete(url)

    assert failure.value.status == 404
    assert text in str(failure.value)
