"""Where calls go: the runners that are alive, and which of them owns a workspace.

A workspace stays where it is for as long as its runner lives or may come back with it. Its place is one key
in KV `owners`, written by compare-and-set; a runner that restarts keeps its id and so its workspaces.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from pydantic import ValidationError

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.names import OWNERS, RUNNERS
from banksman.bus.watch import BucketView
from banksman.contracts import subjects
from banksman.contracts.calls import (
    CallAnswer,
    CallRequest,
    CancelCall,
    FileAnswer,
    FileRequest,
    RunnerLease,
    WorkspaceOwner,
)
from banksman.contracts.errors import Unavailable
from banksman.runs.ports import Placement
from banksman.runs.tool_servers import Instance, least_loaded

CALL_TIMEOUT_S = 2.0
"""Seconds within which a runner answers a request; it only has to admit the call."""

FILES_TIMEOUT_S = 10.0
"""Seconds within which a runner answers about files."""


class Placements:
    """The runners as one process sees them; as a context manager it watches their leases."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._owners = Bucket(bus, OWNERS, WorkspaceOwner)
        self._leases = BucketView(Bucket(bus, RUNNERS, RunnerLease))

    async def __aenter__(self) -> Self:
        await self._leases.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leases.__aexit__(kind, error, trace)

    def leases(self) -> list[RunnerLease]:
        """The runners that are alive."""
        return [entry.value for entry in self._leases.entries() if "." not in entry.key]

    def instances(self, server: str, tenant: str | None) -> list[Instance]:
        """The live processes of a tool server that is `tenant`'s, or everybody's."""
        return [one for one in self._instances(server) if one.tenant == tenant]

    async def alive(self, placement: Placement) -> bool:
        """Whether that process of the runner, or of the tool server, still holds its lease."""
        entry = self._leases.get(placement.runner)
        if entry is not None and entry.value.runner_epoch == placement.runner_epoch:
            return True
        return any(one.placement == placement for one in self._instances(placement.runner))

    async def place(self, tenant: str, conversation_id: str, server: str | None) -> Placement | None:
        """The live process that serves the workspace, or the least loaded one of the tool server.

        Returns:
            None when nobody serves, or the workspace waits for its runner.
        """
        if server is not None:
            return least_loaded(one for one in self._instances(server) if one.tenant in (None, tenant))
        key = f"{tenant}.{conversation_id}"
        while True:
            entry = await self._owners.get(key)
            if entry is None:
                chosen = self._least_loaded()
                if chosen is None:
                    return None
                if await self._owners.create(key, _owned_by(chosen)) is not None:
                    return chosen
                continue
            here = self._serving(entry.value.runner)
            if here is None or here.runner_epoch == entry.value.runner_epoch:
                return here
            if await self._owners.update(key, _owned_by(here), entry.revision) is not None:
                return here

    async def call(self, placement: Placement, request: CallRequest) -> CallAnswer | None:
        """Send a call; None when nobody answered, or not in our words."""
        subject = subjects.tool_call(placement.runner, request.tenant, request.conversation_id)
        try:
            reply = await self._bus.request(subject, request.model_dump_json().encode(), CALL_TIMEOUT_S)
            return CallAnswer.model_validate_json(reply)
        except (Unavailable, ValidationError):
            return None

    async def cancel(self, placement: Placement, tenant: str, attempt: str) -> None:
        """Ask for the end of a started attempt, best effort."""
        subject = subjects.tool_cancel(placement.runner, tenant, attempt)
        try:
            await self._bus.publish(subject, CancelCall(attempt=attempt).model_dump_json().encode())
        except Unavailable:
            return

    async def files(self, tenant: str, conversation_id: str, request: FileRequest) -> FileAnswer:
        """Ask the workspace's runner about its files.

        Raises:
            Unavailable: no runner serves the workspace now, or it did not answer.
        """
        placement = await self.place(tenant, conversation_id, None)
        if placement is None:
            raise Unavailable("no tool-runner serves this workspace now")
        subject = subjects.files(placement.runner, tenant, conversation_id)
        reply = await self._bus.request(subject, request.model_dump_json().encode(), FILES_TIMEOUT_S)
        return FileAnswer.model_validate_json(reply)

    def _instances(self, server: str) -> list[Instance]:
        found = (Instance.of(entry) for entry in self._leases.entries(f"{server}."))
        return [one for one in found if one is not None]

    def _serving(self, runner: str) -> Placement | None:
        entry = self._leases.get(runner)
        if entry is None or not entry.value.serving:
            return None
        return Placement(entry.value.runner, entry.value.runner_epoch)

    def _least_loaded(self) -> Placement | None:
        serving = [lease for lease in self.leases() if lease.serving and lease.workspaces]
        if not serving:
            return None
        chosen = min(serving, key=lambda lease: lease.load)
        return Placement(chosen.runner, chosen.runner_epoch)


def _owned_by(placement: Placement) -> WorkspaceOwner:
    return WorkspaceOwner(runner=placement.runner, runner_epoch=placement.runner_epoch, dirty=True)
