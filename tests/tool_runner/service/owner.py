"""The part of a run's owner that communicates with a runner."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.fixtures import SecuredNats
from tests.tool_runner.service.processes import WAIT_S, RunnerProcess, until

from banksman.agent.relay import Relay
from banksman.agent.relayed_messages import TenantRedaction
from banksman.agent.router import report_router
from banksman.agent.runners.stores import WorkspaceReports
from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import ControlPlane
from banksman.bus.names import RUNNERS
from banksman.bus.secrets import CallTickets, SecretBox, TenantSecrets
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.slots import CallSlots, StoredSlot, watch_slots
from banksman.contracts import subjects
from banksman.contracts.calls import (
    CallFinished,
    CallReply,
    CallRequest,
    CallStarted,
    CancelCall,
    RunnerLease,
)
from banksman.contracts.ids import attempt_id, new_id
from banksman.contracts.runner_requests import FileReply, FileRequest
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.deployment.users import AGENT, GATEWAY


class Owner:
    """The owner of a run in APP: it sends calls, receives results, and cancels."""

    def __init__(
        self,
        bus: Bus,
        gateway: Bus,
        runner: RunnerProcess,
        tickets: CallTickets,
        tenant: str,
        conversation: str,
    ) -> None:
        self.bus = bus
        self.tickets = tickets
        self.gateway = gateway
        """The gateway's connection, for files and progress."""
        self.runner = runner
        self.tenant = tenant
        self.conversation = conversation
        self.slots = CallSlots(bus)
        self.leases = Bucket(bus, RUNNERS, RunnerLease)
        self._stored: dict[tuple[str, str], asyncio.Future[CallStarted | CallFinished]] = defaultdict(
            asyncio.get_running_loop().create_future
        )

    def on_fact(self, fact: StoredSlot) -> None:
        self._stored[fact.attempt, fact.kind].set_result(fact.decode())

    def request(
        self, tool: str, *, timeout_s: float = 60.0, within_s: float = 60.0, **arguments: Any
    ) -> CallRequest:
        """Build a new call as the log would contain it."""
        call = ToolCall(
            id=new_id("k"),
            name=tool,
            arguments=arguments,
            timeout_s=timeout_s,
            idempotent=tool == "read_file",
        )
        attempt = attempt_id(call.id, 1)
        return CallRequest(
            tenant=self.tenant,
            conversation_id=self.conversation,
            run_id=f"{self.conversation}-r",
            attempt=attempt,
            ticket=self.tickets.issue(self.tenant, attempt, self.runner.id),
            call=call,
            digest=call.digest,
            runner_epoch=self.runner.epoch,
            deadline=datetime.now(UTC) + timedelta(seconds=within_s),
            left_s=within_s,
        )

    async def send(self, request: CallRequest, *, timeout_s: float = WAIT_S) -> CallReply:
        subject = subjects.tool_call(self.runner.id, request.tenant, request.conversation_id)
        reply = await self.bus.request(subject, request.model_dump_json().encode(), timeout_s)
        return CallReply.model_validate_json(reply)

    async def accepted(self, request: CallRequest) -> CallRequest:
        assert (await self.send(request)).answer == "accepted"
        return request

    async def started(self, request: CallRequest) -> CallStarted:
        async with asyncio.timeout(WAIT_S):
            started = await asyncio.shield(self._stored[request.attempt, "started"])
        assert isinstance(started, CallStarted)
        return started

    async def result(self, request: CallRequest) -> ToolResult:
        async with asyncio.timeout(WAIT_S):
            finished = await asyncio.shield(self._stored[request.attempt, "result"])
        assert isinstance(finished, CallFinished)
        return finished.result

    async def call(self, tool: str, *, timeout_s: float = 60.0, **arguments: Any) -> ToolResult:
        return await self.result(await self.accepted(self.request(tool, timeout_s=timeout_s, **arguments)))

    async def bash(self, command: str) -> ToolResult:
        return await self.call("bash", command=command)

    async def cancel(self, request: CallRequest) -> CallReply:
        subject = subjects.tool_cancel(self.runner.id, self.tenant, request.attempt)
        body = CancelCall(attempt=request.attempt).model_dump_json().encode()
        return CallReply.model_validate_json(await self.bus.request(subject, body, WAIT_S))

    async def lease(self) -> Entry[RunnerLease] | None:
        return await self.leases.get(self.runner.id)

    async def lease_ended(self, within_s: float) -> None:
        """Wait until the runner's lease key is removed."""

        async def is_removed() -> bool:
            return await self.lease() is None

        await until(is_removed, within_s)

    async def file(self, request: FileRequest) -> FileReply:
        subject = subjects.files(self.runner.id, self.tenant, self.conversation)
        reply = await self.gateway.request(subject, request.model_dump_json().encode(), WAIT_S)
        return FileReply.model_validate_json(reply)


@asynccontextmanager
async def owning(
    secured: SecuredNats, runner: RunnerProcess, *, hears_reports: bool = True
) -> AsyncIterator[Owner]:
    """Create an owner with its own tenant and conversation, and an agent for workspace reports."""
    async with await secured.connect(AGENT) as bus, await secured.connect(GATEWAY) as gateway:
        tickets = await CallTickets.load(bus)
        owner = Owner(bus, gateway, runner, tickets, new_id("t"), new_id("c"))
        await watch_slots(bus, owner.on_fact, tenant=owner.tenant)
        async with AsyncExitStack() as agent:
            if hears_reports:
                await agent.enter_async_context(handling_reports(bus))
            await agent.enter_async_context(Relay(bus, tickets, TenantRedaction(bus, b"")))
            await bus.ready()
            yield owner


def handling_reports(bus: Bus) -> ControlPlane:
    """Reply to workspace reports of runners, as agents do."""
    return ControlPlane(bus, report_router(WorkspaceReports(bus, TenantSecrets(bus, SecretBox(b"")))))
