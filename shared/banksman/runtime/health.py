"""Health, readiness and metrics of a process, over HTTP."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from banksman.contracts.administration import CheckName
from banksman.library_internals.uvicorn_connections import ListenerLimits, OpenConnections, http_protocol
from banksman.library_internals.uvicorn_server import QuietServer
from banksman.runtime.background import Background
from banksman.runtime.settings import HealthSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")

Check = Callable[[], Awaitable[str | None]]
"""Returns the problem it found, or None."""

Measure = Callable[[], Awaitable[None]]
"""Updates metrics before they are returned."""

READY_VALID_S = 0.2
"""Seconds for which clients receive the same result of the checks."""
CHECK_TIMEOUT_S = 0.8
"""Maximum seconds of all checks, which run at the same time: probes have time limits from one second."""
MEASURE_TIMEOUT_S = 2.0
"""Maximum seconds of all updates of metrics, which run at the same time."""
_LIMITS = ListenerLimits(total=64, unknown=64, unknown_per_address=32, header_s=5.0, body_s=5.0)


@dataclass
class Health:
    """Health of a process, which is not ready while it starts or drains, or while a check finds a problem."""

    service: str
    checks: dict[CheckName, Check] = field(default_factory=dict[CheckName, Check])
    warnings: dict[CheckName, Check] = field(default_factory=dict[CheckName, Check])
    """Checks whose problems are reported but do not affect readiness."""
    measures: dict[str, Measure] = field(default_factory=dict[str, Measure])
    """Functions that update the metrics before they are returned."""
    draining: bool = False
    started: bool = False
    since: float = field(default_factory=time.monotonic)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    places: int | None = None
    """Maximum number of runs, calls or connections at a time; None for no limit."""
    used: Callable[[], int] = lambda: 0
    """Returns the number of used places."""
    background: Background = field(default_factory=Background)
    """The background tasks of the process. A task that keeps failing makes the process not ready."""

    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _found_ready: bool = False
    _checked_at: float = float("-inf")

    def __post_init__(self) -> None:
        self.checks["background"] = self.background.problem

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self.since

    async def problems(self) -> dict[str, str]:
        """Return the problems that prevent readiness, by check; empty if the process is ready."""
        if self.draining:
            return {"process": "draining"}
        problems = await self._found(self.checks)
        return problems if self.started else {"process": "starting", **problems}

    async def warned(self) -> dict[str, str]:
        """Return the problems that do not affect readiness, by check."""
        return await self._found(self.warnings)

    async def findings(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the problems and the warnings, by check."""
        problems, warnings = await _together(self.problems(), self.warned())
        return problems, warnings

    async def _found(self, checks: Mapping[CheckName, Check]) -> dict[str, str]:
        names = tuple(checks)
        found = await _together(*(self._run(checks[name]) for name in names))
        return {name: problem for name, problem in zip(names, found, strict=True) if problem is not None}

    async def _run(self, check: Check) -> str | None:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                return await check()
        except TimeoutError:
            return f"no result within {CHECK_TIMEOUT_S:g} s"
        except Exception as error:
            logger.debug("a readiness check failed", exc_info=True)
            return str(error) or type(error).__name__

    def public_routes(self) -> list[Route]:
        """Return the routes for clients, which learn only whether the process is ready."""
        return [Route("/healthz", self._alive), Route("/readyz", self._ready)]

    def routes(self) -> list[Route]:
        """Return the routes for operators, with the reasons and the metrics."""
        return [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
        ]

    async def _alive(self, _request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def _ready(self, _request: Request) -> Response:
        # Requests need no key, and each check is a round trip to the broker.
        async with self._turn:
            if self.draining or time.monotonic() - self._checked_at > READY_VALID_S:
                self._found_ready = not await self.problems()
                self._checked_at = time.monotonic()
        return JSONResponse({"ready": self._found_ready}, status_code=200 if self._found_ready else 503)

    async def _healthz(self, _request: Request) -> Response:
        return JSONResponse({"service": self.service, "status": "alive"})

    async def _readyz(self, _request: Request) -> Response:
        problems, warnings = await self.findings()
        body = {"service": self.service, "ready": not problems, "problems": problems, "warnings": warnings}
        return JSONResponse(body, status_code=503 if problems else 200)

    async def _metrics(self, _request: Request) -> Response:
        await _together(*(_update(name, measure) for name, measure in self.measures.items()))
        return Response(generate_latest(), headers={"content-type": CONTENT_TYPE_LATEST})


async def _together(*works: Coroutine[Any, Any, T]) -> list[T]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
    return [task.result() for task in tasks]


async def _update(name: str, measure: Measure) -> None:
    try:
        async with asyncio.timeout(MEASURE_TIMEOUT_S):
            await measure()
    except Exception as error:
        logger.info("metrics of %s are not updated: %s", name, error or type(error).__name__)


@asynccontextmanager
async def listening(config: uvicorn.Config) -> AsyncGenerator[int]:
    """Serve an application while the context is open; yield its port; raise `OSError` if it is taken."""
    listener = config.bind_socket()
    # asyncio sets TCP_NODELAY only on sockets that were created with the protocol number of TCP, which
    # uvicorn omits. Without it, the body of a response waits up to 40 ms after its head, until the client's
    # delayed acknowledgement of the head arrives (Nagle's algorithm). Accepted connections inherit the
    # option.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # From here on the kernel queues connections. Without it, clients are refused until the server runs.
    listener.listen(config.backlog)
    server = QuietServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name=f"http {config.host}:{config.port}")
    try:
        yield listener.getsockname()[1]
    finally:
        server.stop()
        await serving


@asynccontextmanager
async def health_server(health: Health, settings: HealthSettings) -> AsyncGenerator[int | None]:
    """Serve the health of a process while the context is open; yield the port, or None if it is disabled."""
    if settings.health_port is None:
        yield None
        return
    app = Starlette(routes=health.routes())
    host, port = settings.health_host, settings.health_port
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=http_protocol(OpenConnections(_LIMITS)),
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        date_header=False,
    )
    async with listening(config) as port:
        yield port
