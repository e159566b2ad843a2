"""Health, readiness and metrics of a process, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from banksman.runtime.background import Background
from banksman.runtime.settings import HealthSettings

logger = logging.getLogger(__name__)

Check = Callable[[], Awaitable[str | None]]
"""Says what is wrong, or None when all is well."""

Measure = Callable[[], Awaitable[None]]
"""Brings metrics up to date that nothing else does."""

CHECK_TIMEOUT_S = 2.0


@dataclass
class Health:
    """What a process says of itself.

    It is not ready while it starts or drains, or while a check finds something.
    """

    service: str
    checks: dict[str, Check] = field(default_factory=dict[str, Check])
    warnings: dict[str, Check] = field(default_factory=dict[str, Check])
    """What needs a look although the process is ready."""
    measures: dict[str, Measure] = field(default_factory=dict[str, Measure])
    """Functions that update the metrics before they are returned."""
    draining: bool = False
    started: bool = False
    since: float = field(default_factory=time.monotonic)
    background: Background = field(default_factory=Background)
    """The background tasks of the process. One that keeps failing makes the process not ready."""

    def __post_init__(self) -> None:
        self.checks["background"] = self.background.problem

    @property
    def uptime_s(self) -> float:
        """Seconds since the process began to serve."""
        return time.monotonic() - self.since

    async def problems(self) -> dict[str, str]:
        """What keeps the process from being ready, by check; empty when it is ready."""
        if self.draining:
            return {"process": "draining"}
        found = {name: await self._run(check) for name, check in tuple(self.checks.items())}
        problems = {name: problem for name, problem in found.items() if problem is not None}
        return problems if self.started else {"process": "starting", **problems}

    async def _run(self, check: Check) -> str | None:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                return await check()
        except TimeoutError:
            return f"no answer within {CHECK_TIMEOUT_S:g} s"
        except Exception as error:
            logger.debug("a readiness check failed", exc_info=True)
            return str(error) or type(error).__name__

    def routes(self) -> list[Route]:
        """`/healthz`, `/readyz` and `/metrics`, for any Starlette application."""
        return [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
        ]

    async def _healthz(self, _request: Request) -> Response:
        return JSONResponse({"service": self.service, "status": "alive"})

    async def _readyz(self, _request: Request) -> Response:
        problems = await self.problems()
        found = {name: await self._run(check) for name, check in tuple(self.warnings.items())}
        warnings = {name: warning for name, warning in found.items() if warning is not None}
        body = {
            "service": self.service,
            "ready": not problems,
            "problems": problems,
            "warnings": warnings,
        }
        return JSONResponse(body, status_code=503 if problems else 200)

    async def _metrics(self, _request: Request) -> Response:
        for name, measure in tuple(self.measures.items()):
            try:
                async with asyncio.timeout(CHECK_TIMEOUT_S):
                    await measure()
            except Exception as error:
                logger.info("%s: not measured: %s", name, error or type(error).__name__)
        return Response(generate_latest(), headers={"content-type": CONTENT_TYPE_LATEST})


class QuietServer(uvicorn.Server):
    """A uvicorn that leaves the process's signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield


@asynccontextmanager
async def listening(config: uvicorn.Config) -> AsyncGenerator[int]:
    """Serve an application while the context is open; gives the port it listens on.

    Raises:
        OSError: the port is taken, or may not be used.
    """
    listener = config.bind_socket()
    # asyncio does this for sockets that were made with the number of TCP, which uvicorn leaves out. Without,
    # the second small write of two, as of an answer's body after its head, waits 40 ms for the peer's delayed
    # acknowledgement of the first. Accepted connections inherit it.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # From here on clients wait; without it they are refused until the server's task has run.
    listener.listen(config.backlog)
    server = QuietServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name=f"http {config.host}:{config.port}")
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def health_server(health: Health, settings: HealthSettings) -> AsyncGenerator[int | None]:
    """Serve a process's health while the context is open; gives the port, or None when it serves none."""
    if settings.health_port is None:
        yield None
        return
    app = Starlette(routes=health.routes())
    host, port = settings.health_host, settings.health_port
    config = uvicorn.Config(app, host=host, port=port, log_config=None, access_log=False, lifespan="off")
    async with listening(config) as port:
        yield port
