"""A model server that refuses what the vendors refuse, in the test's event loop or in its own process."""

from __future__ import annotations

import argparse
import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

from aiohttp import web
from pydantic import TypeAdapter

from banksman.model_server.app import serving
from banksman.model_server.chat import ChatRequest, Dialect, Json, RequestRefused, loads_object
from banksman.model_server.delivery import Exchange, VendorFormat
from banksman.model_server.replies import Reply
from banksman.runtime import event_loop
from tests.support.model_recorder import AdminRoutes, Outcome, RecordedRequest, Recorder
from tests.support.scripted_models import RawReply, Script, ScriptedReply, ScriptName
from tests.support.scripted_models.playing import ChosenReply
from tests.support.scripted_models.routes import ScriptRoutes
from tests.support.strict_requests.anthropic import ThinkingChecks, check_message
from tests.support.strict_requests.openai import check_chat_completion
from tests.support.strict_requests.responses import check_response
from tests.support.timeouts import WAIT_TIMEOUT_S

_CHECKS = {"openai": check_chat_completion, "anthropic": check_message, "responses": check_response}
_MAX_VIOLATIONS = 1_000
_RECORDED = web.RequestKey("recorded", RecordedRequest)


@dataclass(frozen=True, slots=True)
class Violation:
    """A request that broke a rule of its vendor's format or exceeded a script."""

    dialect: Dialect
    model: str | None
    message: str
    param: str | None


class StrictRoutes(ScriptRoutes):
    """The routes of the model server, which refuse requests as the vendors do, and record them.

    `GET /violations` returns the last 1,000 refused requests; `DELETE` removes the records.
    """

    def __init__(self, chunk_delay_s: float, scripts: Mapping[str, Script]) -> None:
        super().__init__(chunk_delay_s, scripts)
        self.recorder = Recorder()
        self.violations: deque[Violation] = deque(maxlen=_MAX_VIOLATIONS)
        self._thinking = ThinkingChecks()

    def add_routes(self, app: web.Application) -> None:
        """Add the routes of the model server and those for tests."""
        super().add_routes(app)
        AdminRoutes(self.scripts, self.recorder, self.gates).add_to(app)
        app.router.add_get("/violations", self._get_violations)
        app.router.add_delete("/violations", self._delete_violations)

    async def respond(self, wire: VendorFormat, request: web.Request) -> web.StreamResponse:
        """Record the request and its outcome."""
        recorded = self.recorder.begin(wire.dialect, request.path, request.headers)
        request[_RECORDED] = recorded
        try:
            recorded.raw = await request.read()
            recorded.model = _model_of(recorded.raw)
            self.recorder.changed()
            return await super().respond(wire, request)
        finally:
            if recorded.outcome == "open":
                recorded.outcome = "disconnected"
            self.recorder.changed()

    def read(self, wire: VendorFormat, body: Json) -> ChatRequest:
        """Refuse a request that breaks a rule of the vendor."""
        _CHECKS[wire.dialect](body)
        if wire.dialect == "anthropic":
            self._thinking.check(body)
        return super().read(wire, body)

    async def answer(self, chat: ChatRequest, exchange: Exchange) -> web.StreamResponse:
        """Record that the reply was sent."""
        response = await super().answer(chat, exchange)
        recorded = exchange.request[_RECORDED]
        if recorded.outcome == "open":
            recorded.outcome = "completed"
        return response

    async def deliver(self, chosen: ChosenReply, chat: ChatRequest, exchange: Exchange) -> web.StreamResponse:
        """Record that the fault was applied, if the reply has one."""
        response = await super().deliver(chosen, chat, exchange)
        if isinstance(chosen.reply, ScriptedReply) and chosen.reply.fault is not None:
            exchange.request[_RECORDED].outcome = "faulted"
        return response

    def resolve(self, chosen: ChosenReply, reply: ScriptedReply, chat: ChatRequest) -> Reply:
        """Store the thinking that accompanies calls."""
        resolved = super().resolve(chosen, reply, chat)
        if chat.dialect == "anthropic":
            self._thinking.sent(chat.model, [call.id for call in resolved.calls], resolved.reasoning)
        return resolved

    def refuse(self, refused: RequestRefused, exchange: Exchange) -> web.Response:
        """Record the violation, unless only the model or the path does not exist."""
        recorded = exchange.request.get(_RECORDED)
        if recorded is not None:
            recorded.outcome = "refused"
            if refused.status == 400:
                dialect = exchange.wire.dialect
                violation = Violation(dialect, recorded.model, refused.message, refused.param)
                self.violations.append(violation)
        return super().refuse(refused, exchange)

    async def _get_violations(self, _request: web.Request) -> web.Response:
        return web.json_response([asdict(violation) for violation in self.violations])

    async def _delete_violations(self, _request: web.Request) -> web.Response:
        self.violations.clear()
        return web.Response(status=204)


class ModelServer:
    """A running model server."""

    def __init__(self, url: str, routes: StrictRoutes) -> None:
        self.url = url
        """`http://host:port`, the base URL for the Anthropic SDK."""
        self.openai_url = f"{url}/v1"
        """The base URL for the OpenAI SDK."""
        self._routes = routes

    @classmethod
    @asynccontextmanager
    async def running(
        cls,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        chunk_delay_s: float = 0.0,
        scripts: Mapping[str, Script] | None = None,
    ) -> AsyncGenerator[Self]:
        """Serve until the context ends; see `serving`."""
        routes = StrictRoutes(chunk_delay_s, scripts or {})
        async with serving(routes, host, port) as url:
            yield cls(url, routes)

    def play(
        self,
        name: str,
        replies: Sequence[ScriptedReply | RawReply] | Script,
        *,
        by: Literal["position", "count"] = "position",
        at_end: Literal["refuse", "repeat", "loop"] = "refuse",
        call_ids: Literal["random", "derived"] = "random",
    ) -> str:
        """Load a script and return the name of its model, `scripted/<name>`.

        Args:
            name: Letters, digits, `.`, `_` and `-`, at most 64.
            replies: The replies in order, or a whole script with its own options.
            by: See `Script.by`.
            at_end: See `Script.at_end`.
            call_ids: See `Script.call_ids`.
        """
        if not isinstance(replies, Script):
            replies = Script(replies=tuple(replies), by=by, at_end=at_end, call_ids=call_ids)
        return self._routes.scripts.load(name, replies)

    def requests(self, script: str | None = None) -> list[RecordedRequest]:
        """Return the recorded requests, oldest first, optionally of one script only."""
        return self._routes.recorder.requests(script)

    @property
    def violations(self) -> list[Violation]:
        """Return all requests that broke a rule of their vendor's format or exceeded a script."""
        return list(self._routes.violations)

    def open_gate(self, name: str) -> None:
        """Release all current and future replies that wait at this gate."""
        self._routes.gates.open(name)

    async def wait_for_requests(
        self,
        script: str,
        count: int = 1,
        *,
        outcome: Outcome | None = None,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> list[RecordedRequest]:
        """Wait until a script has received this many requests, optionally with this outcome.

        Raises:
            TimeoutError: Too few requests arrived within `timeout_s` seconds.
        """

        def matching() -> list[RecordedRequest]:
            requests = self._routes.recorder.requests(script)
            return [request for request in requests if outcome is None or request.outcome == outcome]

        async with asyncio.timeout(timeout_s):
            await self._routes.recorder.wait_until(lambda: len(matching()) >= count)
        return matching()


def _model_of(raw: bytes) -> str | None:
    model = (loads_object(raw) or {}).get("model")
    return model if isinstance(model, str) else None


async def _serve(port: int, scripts: bytes | None) -> None:
    if scripts is None:
        routes: ScriptRoutes = StrictRoutes(0.0, {})
    else:
        routes = ScriptRoutes(0.0, _SCRIPTS.validate_json(scripts))
    async with serving(routes, port=port):
        await asyncio.Event().wait()


_SCRIPTS: TypeAdapter[dict[str, Script]] = TypeAdapter(dict[ScriptName, Script])

if __name__ == "__main__":
    _parser = argparse.ArgumentParser(
        description="Serve scripts with the vendors' rules, and record requests."
    )
    _parser.add_argument("--port", type=int, required=True)
    _parser.add_argument("--scripts", type=Path, help="JSON; play these without rules and records")
    _arguments = _parser.parse_args()
    _file: Path | None = _arguments.scripts
    event_loop.run(_serve(_arguments.port, _file.read_bytes() if _file else None))
