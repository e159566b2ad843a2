"""A tool server, which registers its tools and executes their calls.

A server may have any number of processes. Each has its own lease under the server's id, and a call goes to
the least loaded process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.control_plane.control import ControlPlane
from banksman.bus.direct_acks import direct_acks
from banksman.bus.storage.leases import instance_key
from banksman.bus.storage.slots import CallSlots
from banksman.contracts import subjects
from banksman.contracts.calls import DRAINING, RunnerLease
from banksman.contracts.errors import Unavailable
from banksman.contracts.registry import ListedTool, RegisterTool, ToolList, ToolRegistration, WithdrawTool
from banksman.contracts.subjects import ANY
from banksman.quotas.places import Shares
from banksman.runs.runners.calls import LeasedSlots, RunnerCalls
from banksman.runs.runners.lease import Lease, LeaseLost
from banksman.runtime.background import first_error
from banksman.runtime.waits import set_within
from banksman.sdk.servers.calls import ServedCalls, tool_router
from banksman.sdk.servers.registry import BUDGET_S, RegisteredServer
from banksman.sdk.tools import DEFAULT_TOOLBOX, AnyTool

logger = logging.getLogger(__name__)

RENEW_EVERY_S = 10.0
"""Seconds between registrations, which restore a registration that was withdrawn by mistake."""
RESTART_PAUSE_S = 1.0
"""Seconds before a process without its lease takes a new one."""
EPOCH_BITS = 52
"""Bits of a runner epoch. JSON parsers of all languages read integers of this size exactly."""


class ToolServer(RegisteredServer):
    """Serves tools over NATS. As a context manager, it serves while the block runs.

    The tools are registered when the block starts. A process that loses its lease ends its calls and serves
    again with a new lease.
    """

    kind = "tool"

    def __init__(
        self,
        name: str,
        tools: Iterable[AnyTool] | None = None,
        *,
        nats: NatsSettings | None = None,
        capacity: int = 64,
        drain_s: float = 20.0,
    ) -> None:
        """Create a server without connecting it.

        Args:
            name: The server's id, the same in all of its processes.
            tools: The tools to serve; None serves all tools that `tool` has created so far.
            nats: The connection settings; None reads the environment or the local system (`sdk.local`).
            capacity: Maximum running and waiting calls; further calls go to other processes. A single tenant
                gets at most three quarters of a capacity of four or more.
            drain_s: Seconds that a stopping server waits for running calls.
        """
        super().__init__(name, nats)
        self.tools = {one.name: one for one in (DEFAULT_TOOLBOX if tools is None else tools)}
        if not self.tools:
            raise ValueError(f"tool server {name!r} has no tools")
        self._capacity = capacity
        self._drain_s = drain_s
        self._offered = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Serve until cancelled or until `stop` is called; raise as `run`."""
        async with self:
            assert self._serving is not None
            await asyncio.shield(self._serving)

    def stop(self) -> None:
        """Accept no more calls, wait for running ones, and let `serve` return."""
        self._stop.set()

    async def list(self) -> tuple[ListedTool, ...]:
        """Return the registered tools of all servers."""
        return ToolList.model_validate_json(await self._request("list")).tools

    async def withdraw(self, name: str) -> None:
        """Stop offering one of its tools; raise `RemoteError` if this server has not registered it."""
        self.tools.pop(name, None)
        await self._request("withdraw", WithdrawTool(name=name, server=self.name))

    async def _enter(self, scope: AsyncExitStack) -> None:
        bus = await scope.enter_async_context(await self._connect())
        self._serving = asyncio.create_task(self._serve(bus), name=self._title)
        scope.push_async_callback(self._ended)
        offered = asyncio.create_task(self._offered.wait())
        scope.callback(offered.cancel)
        await asyncio.wait({self._serving, offered}, return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            self._serving.result()

    async def _ended(self) -> None:
        assert self._serving is not None
        self.stop()
        if not self._offered.is_set():
            self._serving.cancel()
        await asyncio.wait({self._serving})
        if not self._serving.cancelled():
            self._serving.result()

    async def _until_stopped(self) -> None:
        await self.serve()

    async def _register(self, budget_s: float = BUDGET_S) -> str | None:
        """Register the tools; return the tenant whose models may call them, None for all."""
        tenant = None
        for tool in tuple(self.tools.values()):
            definition = tool.definition.model_copy(update={"server": self.name})
            reply = await self._request("register", RegisterTool(definition=definition), budget_s=budget_s)
            tenant = ToolRegistration.model_validate_json(reply).tenant
        return tenant

    async def _serve(self, bus: Bus) -> None:
        while not self._stop.is_set():
            try:
                await self._session(bus)
            except BaseExceptionGroup as group:
                error = first_error(group)
                if not isinstance(error, LeaseLost | Unavailable):
                    raise error from None
                if bus.closed.is_set() or not self._offered.is_set():
                    raise error from None
                logger.error("tool server %s restarts with a new lease: %s", self.name, error)
                await set_within(self._stop, RESTART_PAUSE_S)

    async def _session(self, bus: Bus) -> None:
        epoch = secrets.randbits(EPOCH_BITS)
        async with asyncio.TaskGroup() as tasks:
            tenant = await self._register(math.inf)
            lease = Lease(
                bus,
                RunnerLease(runner=self.name, runner_epoch=epoch, workspaces=False),
                key=instance_key(self.name, epoch, tenant),
                load=lambda: len(calls.runner_calls.active),
            )
            calls = self._calls(bus, epoch, lease, tasks)
            control = ControlPlane(
                bus,
                tool_router(self.name, calls),
                at_once=(subjects.tool_call(self.name, ANY, ANY),),
            )
            async with direct_acks(bus, self.name, tenant), control, _leased(lease, tasks):
                # Not a supervised background task: a refused registration, or any other failure here, must
                # end the server and reach the caller of `run`.
                renewing = tasks.create_task(self._keep_registered(), name="registration")
                await self._stop.wait()
                renewing.cancel()
                lease.withdraw(DRAINING)
                await calls.drain(self._drain_s)

    def _calls(self, bus: Bus, epoch: int, lease: Lease, tasks: asyncio.TaskGroup) -> ServedCalls:
        slots = CallSlots(bus, may_read=False)
        runner_calls = RunnerCalls(
            runner=self.name,
            runner_epoch=epoch,
            slots=LeasedSlots(slots, runner_epoch=epoch, holds=lambda: lease.holds),
            # No places above `capacity`: its author may have set it because the tools support no more calls.
            capacity=Shares(self._capacity, extra=0),
            now=lambda: datetime.now(UTC),
            may_start=lambda: lease.holds and not calls.draining,
            may_repeat=lambda request: self.tools[request.call.name].definition.idempotent,
            began=lease.call_began,
        )
        calls = ServedCalls(bus, runner_calls, lease, self.tools, tasks)
        return calls

    async def _keep_registered(self) -> None:
        """Register the tools now and every `RENEW_EVERY_S` seconds.

        The registry withdraws the tools of servers without a live lease, also those registered before the
        lease.
        """
        while True:
            try:
                await self._register()
                self._offered.set()
            except Unavailable as error:
                logger.warning("tool server %s could not renew its registration: %s", self.name, error)
            await asyncio.sleep(RENEW_EVERY_S)


@asynccontextmanager
async def _leased(lease: Lease, tasks: asyncio.TaskGroup) -> AsyncGenerator[None]:
    await lease.take()
    # Not a supervised background task: a process without its lease must end its calls, so a failure here ends
    # the session.
    renewal = tasks.create_task(lease.keep(), name="lease")
    try:
        yield
    finally:
        await lease.release()
        renewal.cancel()
        await asyncio.wait({renewal})
