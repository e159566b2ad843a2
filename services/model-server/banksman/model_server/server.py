from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal, Self

from aiohttp import web

from banksman.model_server.models import Models
from banksman.model_server.recorder import Outcome, RecordedRequest, Recorder, Violation
from banksman.model_server.routes import ModelRoutes
from banksman.model_server.script import RawReply, Reply, Script

_SHUTDOWN_S = 0.5
"""Seconds that open responses have to end when the server stops; then they are cut."""


class ModelServer:
    """A running model server with access to its scripts and recorded requests, for tests."""

    def __init__(self, url: str, models: Models, service: ModelRoutes) -> None:
        self.url = url
        """`http://host:port`, the base URL for the Anthropic SDK."""
        self.openai_url = f"{url}/v1"
        """The base URL for the OpenAI SDK."""
        self._models = models
        self._service = service

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
        """Serve in the running event loop until the context ends.

        Args:
            host: The address to listen on.
            port: The port to listen on; 0 takes a free one.
            recording: Whether requests are recorded and the routes for tests exist.
            chunk_delay_s: Pause before each chunk that the demo model streams.
            scripts: Scripts to load, by name.

        Raises:
            OSError: the address is in use.
        """
        models = Models(chunk_delay_s)
        for name, script in (scripts or {}).items():
            models.load(name, script)
        service = ModelRoutes(models, Recorder() if recording else None)
        runner = web.AppRunner(
            service.application(), access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            await site.start()
            yield cls(f"http://{host}:{site.port}", models, service)
        finally:
            await runner.cleanup()

    def play(
        self,
        name: str,
        replies: Sequence[Reply | RawReply] | Script,
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
        return self._models.load(name, replies)

    def requests(self, script: str | None = None) -> list[RecordedRequest]:
        """Return the recorded requests, oldest first, optionally of one script only."""
        return self._recorder.requests(script)

    @property
    def violations(self) -> list[Violation]:
        """All requests that broke a rule of their vendor's format or exceeded a script."""
        return self._service.violations.all()

    def open_gate(self, name: str) -> None:
        """Release all replies that wait at this gate now or later."""
        self._service.gates.open(name)

    async def wait_for_requests(
        self, script: str, count: int = 1, *, outcome: Outcome | None = None, timeout_s: float = 5.0
    ) -> list[RecordedRequest]:
        """Wait until a script has received this many requests, optionally with this outcome.

        Raises:
            TimeoutError: there were fewer within `timeout_s` seconds.
        """

        def matching() -> list[RecordedRequest]:
            requests = self._recorder.requests(script)
            return [request for request in requests if outcome is None or request.outcome == outcome]

        async with asyncio.timeout(timeout_s):
            await self._recorder.wait_until(lambda: len(matching()) >= count)
        return matching()

    @property
    def _recorder(self) -> Recorder:
        if self._service.recorder is None:
            raise RuntimeError("The model server was started with recording=False.")
        return self._service.recorder
