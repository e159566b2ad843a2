"""The headers and queries that passthrough forwards, and the choice of the upstream."""

from __future__ import annotations

import base64
import gzip
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import openai
import pytest
from aiohttp import web
from pydantic import SecretStr
from tests.gateway.passthrough.conftest import Passing, StartPassing, to
from tests.support.model_server import ModelServer
from tests.support.scripted_models import ScriptedReply
from tests.support.web_server import web_server

from banksman.cli.machine import free_port
from banksman.gateway.settings import Dialect, Upstream
from banksman.runtime import redaction

CHAT = "/v1/chat/completions"
FORWARDED = {
    "x-client-request-id": "r1",
    "session-id": "s1",
    "originator": "codex_cli_rs",
    "x-app": "cli",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "anthropic-beta": "b1",
    "openai-beta": "b2",
    "x-stainless-lang": "python",
    "idempotency-key": "i1",
}
WITHHELD = {"cookie": "c=1", "x-forwarded-for": "10.0.0.1", "openai-organization": "org", "x-api-key": "mine"}
EVENTS = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'

Handler = Callable[[web.Request], web.Response]


@asynccontextmanager
async def upstream_of(handler: Handler) -> AsyncGenerator[str]:
    """Serve a handler; yield the base URL."""

    async def handle(request: web.Request) -> web.Response:
        await request.read()
        return handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with web_server(app) as port:
        yield f"http://127.0.0.1:{port}/v1"


def body(model: str = "m", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}


async def test_query_and_listed_headers_reach_the_upstream_and_no_other_header(
    start_passing: StartPassing,
) -> None:
    """The allow-list of docs/clients.md, in both directions."""
    seen: list[web.Request] = []

    def handler(request: web.Request) -> web.Response:
        seen.append(request)
        headers = {"x-should-retry": "true", "retry-after-ms": "5", "set-cookie": "s=1", "server": "vendor"}
        return web.json_response({"error": {"message": "m"}}, status=409, headers=headers)

    async with upstream_of(handler) as url, start_passing(Upstream(name="u", base_url=url)) as passing:
        async with passing.http as http:
            given = FORWARDED | WITHHELD
            response = await http.post(f"{CHAT}?beta=true&a=%2F%20b", json=body(), headers=given)
    [request] = [request for request in seen if request.method == "POST"]
    assert request.raw_path == f"{CHAT}?beta=true&a=%2F%20b"
    assert {name: request.headers.get(name) for name in FORWARDED} == FORWARDED
    assert not [name for name in WITHHELD if name in request.headers]
    assert (response.headers["x-should-retry"], response.headers["retry-after-ms"]) == ("true", "5")
    assert "set-cookie" not in response.headers and "server" not in response.headers


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
async def test_a_response_that_is_compressed_unasked_is_readable(
    start_passing: StartPassing, content_type: str
) -> None:
    content = EVENTS if content_type == "text/event-stream" else b'{"ok": true}'

    def handler(_: web.Request) -> web.Response:
        headers = {"content-encoding": "gzip", "content-type": content_type}
        return web.Response(body=gzip.compress(content), headers=headers)

    async with upstream_of(handler) as url:
        exact = Upstream(name="u", base_url=url, normalise=False)
        async with start_passing(exact) as passing, passing.http as http:
            response = await http.post(CHAT, json=body())
    assert response.content.rstrip() == content.rstrip()


async def test_error_that_repeats_the_key_of_the_upstream_is_passed_on_without_it(
    start_passing: StartPassing, caplog: pytest.LogCaptureFixture
) -> None:
    """In the body as it is and escaped for JSON and URLs, and in a header."""
    key = 'upstream "key" + 7f3a9c2'
    redaction.remember([key])

    def handler(request: web.Request) -> web.Response:
        sent = request.headers["authorization"]
        text = f"{sent} {quote(sent)} {base64.b64encode(key.encode()).decode()}"
        error = {"error": {"message": text, "type": "invalid_request_error"}}
        return web.json_response(error, status=401, headers={"x-request-id": sent})

    async with upstream_of(handler) as url:
        keyed = Upstream(name="u", base_url=url, api_key=SecretStr(key))
        async with start_passing(keyed) as passing, passing.http as http:
            response = await http.post(CHAT, json=body())
    hidden = redaction.HIDDEN
    assert response.status_code == 401
    assert response.json()["error"]["message"] == f"Bearer {hidden} Bearer%20{hidden} {hidden}"
    shown = f"{response.text} {response.headers} {caplog.text}"
    assert "7f3a9c2" not in shown and base64.b64encode(key.encode()).decode()[:16] not in shown


ESCAPED_KEY = "".join(f"\\u{ord(char):04x}" if at % 2 else char for at, char in enumerate("key-5d1c88e07fa2"))
ERROR = f'{{"error": {{"message": "Bearer {ESCAPED_KEY}", "type": "invalid_request_error"}}}}'


FLAT_ERROR = f'{{"type": "error", "message": "{ESCAPED_KEY}"}}'


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(
    ("path", "status", "content_type", "written"),
    [
        (CHAT, 401, "application/json", ERROR),
        (CHAT, 200, "application/json", f"\n {ERROR}"),
        (CHAT, 200, "application/json", f'{{"id": null, "choices": [], {ERROR[1:]}'),
        (CHAT, 200, "application/problem+json", f'{{"object":"error","message":"{ESCAPED_KEY}"}}'),
        ("/v1/messages", 200, "text/plain", f'{{"type": "error", {ERROR[1:]}'),
        (CHAT, 200, "text/event-stream", f"data: {ERROR}\n\n"),
        (CHAT, 200, "text/event-stream", f'data: {{"object": "error", "message": "{ESCAPED_KEY}"}}\n\n'),
        ("/v1/messages", 200, "text/event-stream", f'event: error\ndata: {{"type": "error", {ERROR[1:]}\n\n'),
        ("/v1/responses", 200, "text/event-stream", f"data: {FLAT_ERROR}\n\n"),
    ],
)
async def test_error_with_an_escaped_key_is_passed_on_without_it(
    start_passing: StartPassing, path: str, status: int, content_type: str, written: str, normalise: bool
) -> None:
    """Also with the status of a success, as a body or within a stream."""
    redaction.remember(["key-5d1c88e07fa2"])

    def handler(_: web.Request) -> web.Response:
        return web.Response(text=written, status=status, content_type=content_type)

    dialects: dict[str, Dialect] = {CHAT: "openai", "/v1/messages": "anthropic", "/v1/responses": "responses"}
    async with upstream_of(handler) as url:
        keyed = Upstream(name="u", base_url=url, dialects=(dialects[path],), normalise=normalise)
        async with start_passing(keyed) as passing, passing.http as http:
            response = await http.post(path, json=body(stream=content_type == "text/event-stream"))
    assert response.status_code == status
    assert redaction.HIDDEN in response.text
    assert ESCAPED_KEY not in response.text


async def test_a_redirect_is_an_error_that_names_no_address(
    start_passing: StartPassing, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(_: web.Request) -> web.Response:
        return web.Response(status=307, headers={"location": "https://elsewhere.test/v1"})

    async with upstream_of(handler) as url, start_passing(Upstream(name="u", base_url=url)) as passing:
        async with passing.http as http:
            response = await http.post(CHAT, json=body())
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (502, "upstream_error")
    assert error["message"] == "The upstream u responded with a redirect (307), which is not followed."
    assert "elsewhere.test" in caplog.text


async def test_an_upstreams_address_stays_in_the_log(
    start_passing: StartPassing, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"127.0.0.1:{free_port()}"
    async with start_passing(Upstream(name="u", base_url=f"http://{address}/v1")) as passing:
        async with passing.http as http:
            response = await http.post(CHAT, json=body())
    assert response.json()["error"]["message"] == "The upstream u cannot be reached."
    assert address.partition(":")[2] in caplog.text


async def test_a_model_that_no_upstream_serves_is_not_found(
    start_passing: StartPassing, upstream: ModelServer
) -> None:
    only_openai = to(upstream, models=("demo", "scripted/*"), dialects=("openai",))
    async with start_passing(only_openai) as passing, passing.http as http:
        missing = await http.post(CHAT, json=body("gpt-9"))
        other = await http.post("/v1/messages", json=body("demo", max_tokens=9))
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    assert (other.status_code, other.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_upstreams_that_serve_every_model_are_tried_in_order(
    start_passing: StartPassing, upstream: ModelServer
) -> None:
    """An upstream without the model responds with 404; the next one gets the request."""
    model = upstream.play("second", [ScriptedReply(text="from the second")])
    seen: list[str] = []

    def handler(request: web.Request) -> web.Response:
        seen.append(request.method)
        return web.json_response({"error": {"message": "no such model"}}, status=404)

    async with upstream_of(handler) as url:
        first = Upstream(name="first", base_url=url)
        async with start_passing(first, to(upstream)) as passing, passing.http as http:
            response = await http.post(CHAT, json=body(model))
            missing = await http.post(CHAT, json=body("nothing"))
    assert response.json()["choices"][0]["message"]["content"] == "from the second"
    assert missing.status_code == 404
    assert "POST" in seen


async def test_an_upstream_that_lists_a_model_comes_before_the_others(
    start_passing: StartPassing, upstream: ModelServer
) -> None:
    """A prompt is not sent to a vendor that does not have the model."""
    posted: list[str] = []

    def handler(request: web.Request) -> web.Response:
        if request.method == "POST":
            posted.append(request.path)
        return web.json_response({"data": [{"id": "other"}]})

    async with upstream_of(handler) as url:
        first = Upstream(name="first", base_url=url)
        async with start_passing(first, to(upstream)) as passing:
            async with openai.AsyncOpenAI(base_url=f"{passing.url}/v1", api_key="any") as client:
                assert {model.id async for model in client.models.list()} == {"other", "demo"}
                await client.chat.completions.create(**body("demo"))
    assert not posted


async def test_models_have_the_format_of_the_callers_api(through: Passing) -> None:
    async with through.http as http:
        listed = (await http.get("/v1/models", headers={"anthropic-version": "2023-06-01"})).json()
        one = (await http.get("/v1/models/demo", headers={"anthropic-version": "2023-06-01"})).json()
        missing = await http.get("/v1/models/none", headers={"anthropic-version": "2023-06-01"})
    assert listed["data"] == [one] and (listed["first_id"], listed["last_id"]) == ("demo", "demo")
    assert (one["type"], one["id"], one["display_name"], one["created_at"]) == (
        "model",
        "demo",
        "demo",
        "1970-01-01T00:00:00Z",
    )
    assert (missing.status_code, missing.json()["type"]) == (404, "error")


async def test_a_body_is_not_parsed_where_it_delays_others(start_passing: StartPassing) -> None:
    """R42: a large body is forwarded unchanged; one that is costly to parse is refused."""
    received: list[bytes] = []

    async def handle(request: web.Request) -> web.Response:
        received.append(await request.read())
        return web.json_response({"choices": []})

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/{path:.*}", handle)
    text = b'{"messages": [{"role": "user", "content": "%s"}], "model": "m"}' % (b'[{\\"a\\",' * 800_000)
    wide = b'{"model": "m", "messages": [%s0]}' % (b"[]," * 600_000)
    deep = b'{"model": "m", "messages": %s}' % (b"[" * 300 + b"]" * 300)
    async with web_server(app) as port:
        upstream = Upstream(name="a", base_url=f"http://127.0.0.1:{port}/v1")
        async with start_passing(upstream) as passing, passing.http as http:
            whole = await http.post(CHAT, content=text)
            refused = [await http.post(CHAT, content=body) for body in (wide, deep, text[:-1])]
            changed = await http.post(CHAT, content=text[:-1] + b', "prompt_id": "p"}')
    assert (whole.status_code, received) == (200, [text])
    messages = [one.json()["error"]["message"] for one in refused]
    assert [one.status_code for one in (*refused, changed)] == [400, 400, 400, 503]
    assert "at most 500000 values" in messages[0] and "nested at most" in messages[1]
    assert "it is broken at line 1" in messages[2]
