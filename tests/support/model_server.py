"""A model server that refuses what the vendors refuse, in the test's event loop or in its own process."""

from __future__ import annotations

import argparse
import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Literal, Self

from aiohttp import web

from banksman.model_server.app import ModelRoutes, model_of, serving
from banksman.model_server.chat import ChatRequest, Dialect, Json, RequestRefused, loads_object
from banksman.model_server.delivery import VendorFormat
from banksman.model_server.models import ChosenReply, Models, ResolvedReply
from banksman.model_server.recorder import Outcome, RecordedRequest, Recorder
from banksman.model_server.script import RawReply, Script, ScriptedReply
from banksman.runtime import event_loop
from tests.support.strict_requests.anthropic import ThinkingChecks, check_message
from tests.support.strict_requests.openai import check_chat_completion
from tests.support.strict_requests.responses import check_response
from tests.support.timeouts import WAIT_TIMEOUT_S

_CHECKS = {"openai": check_chat_completion, "anthropic": check_message, "responses": check_response}
_MAX_VIOLATIONS = 1_000


@dataclass(frozen=True, slots=True)
class Violation:
    """A request that broke a rule of its vendor's format or exceeded a script."""

    dialect: Dialect
    model: str | None
    message: str
    param: str | None


class StrictRoutes(ModelRoutes):
    """The routes of the model server, which refuse requests as the vendors do.

    `GET /violations` returns the last 1,000 refused requests; `DELETE` removes the records.
    """

    def __init__(self, models: Models, *, recording: bool = True) -> None:
        super().__init__(models, recording=recording)
        self.violations: deque[Violation] = deque(maxlen=_MAX_VIOLATIONS)
        self._thinking = ThinkingChecks()

    def add_test_routes(self, app: web.Application) -> None:
        """Add the routes of the model server for tests, and those for violations."""
        super().add_test_routes(app)
        app.router.add_get("/violations", self._get_violations)
        app.router.add_delete("/violations", self._delete_violations)

    def read(self, wire: VendorFormat, body: Json) -> ChatRequest:
        """Refuse a request that breaks a rule of the vendor."""
        _CHECKS[wire.dialect](body)
        if wire.dialect == "anthropic":
            self._thinking.check(body)
        return super().read(wire, body)

    def resolve(self, chosen: ChosenReply, reply: ScriptedReply, chat: ChatRequest) -> ResolvedReply:
        """Store the thinking that accompanies calls."""
        resolved = super().resolve(chosen, reply, chat)
        if chat.dialect == "anthropic":
            self._thinking.sent(chat.model, [call.id for call in resolved.calls], resolved.reasoning)
        return resolved

    def refuse(
        self, refused: RequestRefused, wire: VendorFormat, request_id: str, raw: bytes
    ) -> web.Response:
        """Record the violation, unless only the model or the path does not exist."""
        if refused.status == 400:
            model = model_of(loads_object(raw))
            self.violations.append(Violation(wire.dialect, model, refused.message, refused.param))
        return super().refuse(refused, wire, request_id, raw)

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
        recording: bool = True,
        chunk_delay_s: float = 0.0,
        scripts: Mapping[str, Script] | None = None,
    ) -> AsyncGenerator[Self]:
        """Serve until the context ends; see `serving`."""
        routes = StrictRoutes(Models(chunk_delay_s, scripts or {}), recording=recording)
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
        return self._routes.models.load(name, replies)

    def requests(self, script: str | None = None) -> list[RecordedRequest]:
        """Return the recorded requests, oldest first, optionally of one script only."""
        return self._recorder.requests(script)

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
            requests = self._recorder.requests(script)
            return [request for request in requests if outcome is None or request.outcome == outcome]

        async with asyncio.timeout(timeout_s):
            await self._recorder.wait_until(lambda: len(matching()) >= count)
        return matching()

    @property
    def _recorder(self) -> Recorder:
        if not self._routes.recording:
            raise RuntimeError("The model server was started with recording=False.")
        return self._routes.recorder


async def _serve(port: int) -> None:
    async with ModelServer.running(port=port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(
        description="Serve scripts with the vendors' rules, and record requests."
    )
    _parser.add_argument("--port", type=int, required=True)
    event_loop.run(_serve(_parser.parse_args().port))
