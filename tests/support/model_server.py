"""A model server in the test's event loop, with access to its scripts and recorded requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal, Self

from banksman.model_server.app import ModelRoutes, serving
from banksman.model_server.recorder import Outcome, RecordedRequest, Recorder, Violation
from banksman.model_server.script import RawReply, Script, ScriptedReply
from tests.support.timeouts import WAIT_TIMEOUT_S


class ModelServer:
    """A running model server."""

    def __init__(self, url: str, routes: ModelRoutes) -> None:
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
        async with serving(
            host=host, port=port, recording=recording, chunk_delay_s=chunk_delay_s, scripts=scripts
        ) as (url, routes):
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
        if self._routes.recorder is None:
            raise RuntimeError("The model server was started with recording=False.")
        return self._routes.recorder
