"""The lines of the table in interfaces, section 2, about headers, statuses, keep-alives and limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from aiohttp import web
from tests.gateway.passthrough.conftest import Passing, StartPassing, to
from tests.gateway.passthrough.test_requests import upstream_of
from tests.support.model_server import ModelServer
from tests.support.scripted_models import Gate, ScriptedReply
from tests.support.timeouts import deadline
from tests.support.web_server import web_server

from banksman.gateway.operation import streaming
from banksman.gateway.settings import Upstream

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
PATHS = (CHAT, MESSAGES, RESPONSES)
ALL = ("openai", "anthropic", "responses")
HEADERS = {"anthropic-version": "2023-06-01"}
DIALECT = {CHAT: "openai", MESSAGES: "anthropic", RESPONSES: "responses"}
TYPES = {400: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error"}
"""Anthropic's type of an error, by status."""


def body(path: str, model: str, content: Any = "hi", **more: Any) -> dict[str, Any]:
    name = "input" if path == RESPONSES else "messages"
    limit = {"max_tokens": 9} if path == MESSAGES else {}
    return {"model": model, name: [{"role": "user", "content": content}], **limit, **more}


def check_error(path: str, response: httpx.Response, status: int, code: str) -> None:
    """Check that an error has the format of the API that the path belongs to, with all of its keys."""
    error = response.json()["error"]
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json")
    if path == MESSAGES:
        assert (response.json()["type"], error["type"]) == ("error", TYPES.get(status, "api_error"))
        assert error["message"]
    else:
        assert set(error) == {"message", "type", "param", "code"} and error["message"]
        kind = "server_error" if status >= 500 else "invalid_request_error"
        assert (error["type"], error["code"]) == (kind, code)


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_has_an_id_and_the_headers_that_keep_proxies_from_buffering(
    through: Passing, upstream: ModelServer, path: str
) -> None:
    model = upstream.play("headers", [ScriptedReply(text="one two")])
    async with through.http as http:
        response = await http.post(
            path,
            json=body(path, model, stream=True),
            headers={**HEADERS, "accept-encoding": "gzip", "x-request-id": "mine"},
        )
    given = response.headers
    assert given["content-type"].startswith("text/event-stream")
    assert (given["cache-control"], given["x-accel-buffering"]) == ("no-cache", "no")
    assert "content-encoding" not in given
    assert given["x-request-id"] and given["request-id"]


async def test_a_comment_every_15_seconds_keeps_a_stream_alive_before_its_first_event(
    through: Passing, upstream: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test shortens the interval. A comment is no event with data."""
    assert streaming.KEEP_ALIVE_S == 15
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.02)
    model = upstream.play("late", [ScriptedReply(text="x", gate=Gate(name="later"))])
    async with through.http as http:
        async with http.stream("POST", CHAT, json=body(CHAT, model, stream=True)) as response:
            await upstream.wait_for_requests("late")
            upstream.open_gate("later")
            lines = [line async for line in response.aiter_lines() if line]
    assert response.status_code == 200
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: ") or line == ": keep-alive" for line in lines)


async def test_comments_come_between_events_and_never_within_one() -> None:
    silent = asyncio.Event()

    async def pieces() -> AsyncGenerator[bytes]:
        yield b"data: 1\n\n"
        await silent.wait()
        yield b"data: "
        silent.clear()
        await silent.wait()
        yield b"2\n\n"

    kept = streaming.kept_alive(pieces(), 0.01)
    async with deadline("a piece of the second event was not forwarded"):
        before = [await anext(kept) for _ in range(3)]
        silent.set()
        begun = [piece async for piece in _until(kept, b"data: ")][-1]
        async with asyncio.TaskGroup() as tasks:
            ending = tasks.create_task(_next(kept))
            _, waiting = await asyncio.wait((ending,), timeout=0.1)
            silent.set()
    assert before == [b"data: 1\n\n", b": keep-alive\n\n", b": keep-alive\n\n"]
    assert begun == b"data: " and waiting == {ending}
    assert ending.result() == b"2\n\n"


async def _next(pieces: AsyncIterator[bytes]) -> bytes:
    return await anext(pieces)


async def _until(pieces: AsyncIterator[bytes], last: bytes) -> AsyncIterator[bytes]:
    async for piece in pieces:
        yield piece
        if piece == last:
            return


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_above_ten_mebibytes_is_413_and_a_smaller_one_arrives(
    start_passing: StartPassing, path: str
) -> None:
    async with recording(b"{}") as (url, received):
        async with start_passing(Upstream(name="u", base_url=url, dialects=ALL)) as passing:
            room = 10 * 1024 * 1024 - len(httpx.Request("POST", url, json=body(path, "m", "")).content)
            async with passing.http as http:
                fits = await http.post(path, json=body(path, "m", "x" * room), headers=HEADERS)
                larger = await http.post(path, json=body(path, "m", "x" * (room + 1)), headers=HEADERS)
    assert (fits.status_code, [len(one) for one in received]) == (200, [10 * 1024 * 1024])
    check_error(path, larger, 413, "too_large")


@pytest.mark.parametrize("path", PATHS)
async def test_a_client_above_its_rate_gets_429_with_the_seconds_to_wait(
    start_passing: StartPassing, upstream: ModelServer, path: str
) -> None:
    """The upstream does not receive the refused request."""
    model = upstream.play("often", [ScriptedReply(text="ok")], at_end="repeat")
    async with start_passing(to(upstream), requests_per_s=1) as passing, passing.http as http:
        responses = [await http.post(path, json=body(path, model), headers=HEADERS) for _ in range(5)]
    assert [response.status_code for response in responses] == [200] * 4 + [429]
    check_error(path, responses[-1], 429, "rate_limit_exceeded")
    assert int(responses[-1].headers["retry-after"]) >= 1
    assert len(upstream.requests("often")) == 4


@pytest.mark.parametrize("path", PATHS)
async def test_an_upstream_that_does_not_respond_is_504(
    start_passing: StartPassing, upstream: ModelServer, path: str
) -> None:
    model = upstream.play("silent", [ScriptedReply(text="never", gate=Gate(name="closed"))])
    async with start_passing(to(upstream), upstream_timeout_s=0.2) as passing, passing.http as http:
        check_error(
            path, await http.post(path, json=body(path, model), headers=HEADERS), 504, "upstream_error"
        )


@pytest.mark.parametrize("path", PATHS)
async def test_a_model_without_the_api_of_the_path_is_400(
    start_passing: StartPassing, upstream: ModelServer, path: str
) -> None:
    others = tuple(dialect for dialect in ALL if dialect != DIALECT[path])
    async with start_passing(to(upstream, dialects=others)) as passing, passing.http as http:
        response = await http.post(path, json=body(path, "demo"), headers=HEADERS)
    check_error(path, response, 400, "unsupported_endpoint_for_model")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 429, 500, 503])
async def test_a_refusal_of_the_upstream_keeps_its_status_its_bytes_and_its_time_to_wait(
    start_passing: StartPassing, status: int
) -> None:
    refusal = b'{ "error" : {"message":"No.", "type":"x","param":null,"code":null, "more":[1.0]} }'

    def handler(_: web.Request) -> web.Response:
        return web.Response(
            body=refusal, status=status, content_type="application/json", headers={"retry-after": "7"}
        )

    async with upstream_of(handler) as url, start_passing(Upstream(name="u", base_url=url)) as passing:
        async with passing.http as http:
            response = await http.post(CHAT, json=body(CHAT, "m"))
    assert (response.status_code, response.content) == (status, refusal)
    assert response.headers["retry-after"] == "7"


async def test_models_are_listed_from_memory_with_all_fields(start_passing: StartPassing) -> None:
    """No request waits for an upstream."""
    asked: list[str] = []

    def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"object": "list", "data": [{"id": "m1", "created": 7, "owned_by": "v"}]})

    async with upstream_of(handler) as url, start_passing(Upstream(name="u", base_url=url)) as passing:
        async with passing.http as http:
            first = (await http.get("/v1/models")).json()
            before = len(asked)
            again = [(await http.get("/v1/models")).json() for _ in range(3)]
            one = (await http.get("/v1/models/m1")).json()
    assert first == {
        "object": "list",
        "data": [{"id": "m1", "object": "model", "created": 7, "owned_by": "v"}],
    }
    assert again == [first] * 3 and one == first["data"][0]
    assert len(asked) == before == 1


@pytest.mark.parametrize("content", ["hi", None, [{"type": "text", "text": "hi"}]])
async def test_content_of_every_form_and_unknown_fields_pass_in_both_directions(
    start_passing: StartPassing, content: Any
) -> None:
    message = b'{"role":"assistant","content":null,"reasoning_content":"r"}'
    reply = b'{"id":"c", "object":"chat.completion","choices":[{"message":' + message + b'}],"z":1e2}'
    roles = ("system", "developer", "user", "assistant", "tool")
    sent = {"model": "m", "messages": [{"role": role, "content": content} for role in roles], "top_q": 1}
    async with recording(reply) as (url, received):
        async with start_passing(Upstream(name="u", base_url=url)) as passing, passing.http as http:
            response = await http.post(CHAT, json=sent)
    assert response.content == reply
    assert received == [response.request.content]


@asynccontextmanager
async def recording(reply: bytes) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """Serve one reply to every request; yield the base URL and all request bodies that are not empty."""
    received: list[bytes] = []

    async def handle(request: web.Request) -> web.Response:
        if given := await request.read():
            received.append(given)
        return web.Response(body=reply, content_type="application/json")

    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", handle)
    async with web_server(app) as port:
        yield f"http://127.0.0.1:{port}/v1", received
