"""Placement of calls: the live runners and tool servers, and the runner that owns a workspace.

A workspace stays at its runner while that runner is alive or may return. Its place is one key in KV `owners`,
written by compare-and-set. A runner that restarts has the same id, and so the same workspaces.
`banksman.runs.runners.workspaces` decides when a workspace moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager

from pydantic import Field, ValidationError

from banksman.bus.connection import Bus
from banksman.bus.errors import TimedOut
from banksman.bus.mcp_access import AccessMissing, McpTargets, UserAccessMissing
from banksman.bus.names import OWNERS, RUNNERS
from banksman.bus.secrets import CallTickets, SecretBox, SecretUnusable, TenantSecrets, output_ticket
from banksman.bus.storage.kv import Bucket, Entry
from banksman.bus.storage.leases import LEASE_TTL_S
from banksman.bus.storage.watch import BucketView
from banksman.contracts import calls, subjects
from banksman.contracts.errors import Unavailable
from banksman.contracts.runner_requests import FileReply, FileRequest, FileUnpack, McpRequest
from banksman.contracts.workspace_tools import WEB_SEARCH
from banksman.contracts.workspaces import WorkspaceForget, WorkspaceOwner
from banksman.runs.ports import Clock, Placement
from banksman.runs.runners import workspaces
from banksman.runtime.scope import Scoped
from banksman.runtime.search import SearchSettings
from banksman.runtime.settings import Section

CALL_TIMEOUT_S = 2.0
"""Seconds within which a runner replies to the request for a call; it only has to admit the call."""

FILES_TIMEOUT_S = 10.0
"""Seconds within which a runner replies to a file request."""

RESTORE_TIMEOUT_S = 60.0
"""Seconds within which a runner replies to a file request for which it restores or unpacks a workspace."""

FIND_TIMEOUT_S = 30.0
"""Seconds within which a runner replies to a request that concerns an MCP server."""

_FILE_REQUESTS = 3
"""Maximum number of times that a file request is sent if its workspace moves meanwhile."""


class WorkspaceSettings(Section):
    """Settings of placement, which must be the same for every service that sends calls or file requests."""

    wait_s: float = Field(default=60.0, ge=0)
    """Seconds that a workspace which changed since its last snapshot waits for its runner. Then another
    runner restores the snapshot, and the model is notified of the changes that may be missing. Calls wait 75
    seconds for a runner."""


ENDED = "the tool-runner of this workspace ended before it replied"
Process = Placement | calls.RunnerLease
"""Either names a runner and its epoch."""

RemoveObjects = Callable[[str, str], Awaitable[None]]
"""Removes the snapshots of a conversation, given its tenant and its id."""


class Placements(Scoped):
    """The runners and workspaces known to this process. Within its context, it watches the leases."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        *,
        wait_s: float = WorkspaceSettings().wait_s,
        tickets: CallTickets | None = None,
        signing_key: bytes = b"",
        search: SearchSettings | None = None,
        remove_objects: RemoveObjects | None = None,
    ) -> None:
        """Create the placements.

        All processes that place must share `clock`. Only a process that sends calls needs `tickets`,
        `signing_key` and `search`, and only one with the permission to remove snapshots `remove_objects`.
        """
        self._bus = bus
        self._tickets = tickets
        self._signing_key = signing_key
        self._search = search or SearchSettings()
        self._clock = clock
        self._wait_s = wait_s
        self._remove_objects = remove_objects
        self._loads = workspaces.RunnerLoads()
        box = SecretBox(signing_key)
        self._secrets = TenantSecrets(bus, box)
        self._mcp = McpTargets(bus, box, self._secrets, clock.now)
        self._owners = Bucket(bus, OWNERS, WorkspaceOwner)
        self._leases = BucketView(
            Bucket(bus, RUNNERS, calls.RunnerLease),
            on_change=self._changed,
            ttl_s=LEASE_TTL_S[bus.settings.replicas],
        )
        self._processes: dict[str, tuple[workspaces.ToolServerProcess, ...]] = {}
        """The live processes by tool server, cached until its leases change, because each step reads them."""
        self._began_at = float("-inf")
        self._renewed_at: dict[str, float] = {}
        """When the last renewal of each lease arrived here, by the clock of the event loop."""
        self._ended_at: dict[str, float] = {}
        """When a process of a tool server last ended, by the key of its lease without the epoch."""
        self._on_end: list[Callable[[], None]] = []
        self._waiting: dict[asyncio.Future[None], Process] = {}
        """The process of each request that waits; the future is done when its lease ends."""

    async def _enter(self, scope: AsyncExitStack) -> None:
        await scope.enter_async_context(self._leases)
        self._began_at = asyncio.get_running_loop().time()

    def leases(self) -> list[calls.RunnerLease]:
        return [entry.value for entry in self._leases.entries() if "." not in entry.key]

    def on_lease_end(self, callback: Callable[[], None]) -> None:
        """Call `callback`, which must not block, when a lease has ended."""
        self._on_end.append(callback)

    def renewed(self) -> list[tuple[Entry[calls.RunnerLease], float]]:
        """Return the leases, each with the time when its last renewal arrived, by the event loop's clock."""
        found = ((self._leases.get(key), at) for key, at in self._renewed_at.items())
        return [(entry, at) for entry, at in found if entry is not None]

    async def look_again(self, key: str) -> None:
        """Compare a lease with the stored one, whose end this process may not have received."""
        await self._leases.compare(key)

    def instances(self, server: str, tenant: str | None) -> list[workspaces.ToolServerProcess]:
        """Return the live processes of a tool server; `tenant` is None for one that serves all."""
        return [one for one in self._instances(server) if one.tenant == tenant]

    def absent_s(self, server: str, tenant: str | None) -> float:
        """Return the seconds since a tool server last had a live process; 0.0 while it has one.

        A server counts as live until this process began to watch, because nothing is known of the time before
        that.
        """
        if self.instances(server, tenant):
            return 0.0
        head = server if tenant is None else f"{server}.{tenant}"
        return asyncio.get_running_loop().time() - max(self._ended_at.get(head, 0.0), self._began_at)

    async def alive(self, placement: Placement) -> bool:
        entry = self._leases.get(placement.runner)
        if entry is not None and entry.value.runner_epoch == placement.runner_epoch:
            return True
        return any(one.placement == placement for one in self._instances(placement.runner))

    async def place(self, tenant: str, conversation_id: str, server: str | None) -> Placement | None:
        """Return the process that serves; None if there is none, or the workspace waits for its runner."""
        if server is not None:
            return workspaces.least_loaded(
                one for one in self._instances(server) if one.tenant in (None, tenant)
            )
        key = f"{tenant}.{conversation_id}"
        while True:
            entry = await self._owners.get(key)
            record = entry and entry.value
            decision = workspaces.decide_placement(
                record,
                holder=None if record is None else self._lease_of(record.runner),
                chosen=self._loads.least_loaded(self._leases.entries()),
                now=self._clock.now(),
                wait_s=self._wait_s,
            )
            if decision is None:
                return None
            # Another process may have placed the workspace meanwhile: its record decides in the next round.
            if decision.record != record and not await self._store(key, decision.record, entry):
                continue
            if record is None or record.runner != decision.record.runner:
                self._loads.add(decision.record.runner)
            return _placement(decision.record) if decision.serves else None

    async def forget(self, tenant: str, conversation_id: str) -> None:
        """Remove the workspace of a deleted conversation, and its snapshots.

        The record remains for a runner that is offline, and for agents that collect a snapshot of another
        runner.
        """
        key = f"{tenant}.{conversation_id}"
        while True:
            entry = await self._owners.get(key)
            if entry is None:
                return
            record = entry.value
            if record.deleted:
                break
            tombstone = record.model_copy(update={"deleted": True, "dirty": False, "gone_since": None})
            if await self._owners.update(key, tombstone, entry.revision) is not None:
                break
        removed = await self._removed(tenant, conversation_id, record)
        if self._remove_objects is not None:
            await self._remove_objects(tenant, conversation_id)
        elif record.snapshot is not None and record.snapshot.stored_by != record.runner:
            return
        if removed:
            await self._owners.delete(key)

    async def call(
        self, placement: Placement, request: calls.CallRequest, shown: asyncio.Future[None] | None = None
    ) -> calls.CallReply | None:
        """Send the request for a call; return None if no process replied with a `CallReply`.

        A tool server need not reply once `shown` is done; None requires a reply. The wait also ends with the
        lease of the process: the other processes of a tool server do not reply in its place.
        """
        suffices = shown is not None and request.call.server is not None
        issued = {**self._issued(request, placement.runner), "start_suffices": suffices}
        request = request.model_copy(update=issued)
        subject = subjects.tool_call(placement.runner, request.tenant, request.conversation_id)
        try:
            if request.call.name == WEB_SEARCH.name:
                request = await self._with_search(request)
            elif request.call.server is None:
                request = await self._mcp.with_target(request, placement.runner)
            elif request.call.secrets:
                request = await self._with_secrets(placement, request)
            data = request.model_dump_json().encode()
            with self._until_ended(placement) as ended:
                if shown is not None:
                    shown.add_done_callback(lambda _: ended.done() or ended.set_result(None))
                reply = await self._bus.request(subject, data, CALL_TIMEOUT_S, unless=ended)
            if not reply and shown is not None and shown.done():
                return calls.CallReply(answer="accepted")
            return calls.CallReply.model_validate_json(reply) if reply else None
        except (SecretUnusable, AccessMissing) as error:
            reason, of_user = f"The call was not sent: {error}.", isinstance(error, UserAccessMissing)
            return calls.CallReply(answer="refused", reason=reason, sign_in=of_user)
        except (Unavailable, ValidationError):
            return None

    def _issued(self, request: calls.CallRequest, holder: str) -> dict[str, str]:
        """Return the tickets of a request for the process that it is sent to."""
        if self._tickets is None:
            return {}
        return {
            "ticket": self._tickets.issue(request.tenant, request.attempt, holder),
            "output_ticket": output_ticket(self._signing_key, request.tenant, request, holder),
        }

    async def _with_secrets(self, placement: Placement, request: calls.CallRequest) -> calls.CallRequest:
        """Add the secrets that the tool declares if its server is the tenant's; raise `SecretUnusable`."""
        own = self.instances(placement.runner, request.tenant)
        if not any(one.placement == placement for one in own):
            return request
        call = request.call
        values = await self._secrets.values(request.tenant, call.secrets, call.server or "")
        return request.model_copy(update={"secrets": values})

    async def _with_search(self, request: calls.CallRequest) -> calls.CallRequest:
        """Add the tenant's search provider, if it has one; raise `SecretUnusable`."""
        provider = self._search.of(request.tenant, request.search)
        if provider is None:
            return request.model_copy(update={"search": None})
        key = None if provider.key is None else provider.key.get_secret_value()
        if provider.secret is not None:
            values = await self._secrets.values(request.tenant, (provider.secret,), WEB_SEARCH.name)
            key = values[provider.secret]
        target = calls.SearchTarget(provider=provider.provider, url=provider.url, key=key)
        return request.model_copy(update={"search": target})

    async def cancel(self, placement: Placement, tenant: str, attempt: str) -> None:
        subject = subjects.tool_cancel(placement.runner, tenant, attempt)
        try:
            await self._bus.publish(subject, calls.CancelCall(attempt=attempt).model_dump_json().encode())
        except Unavailable:
            return

    async def files(self, tenant: str, conversation_id: str, request: FileRequest) -> FileReply:
        """Send a file request to the runner of the workspace; raise `Unavailable` if none serves it."""
        for _ in range(_FILE_REQUESTS):
            placement = await self.place(tenant, conversation_id, None)
            if placement is None:
                raise Unavailable("no tool-runner serves this workspace now")
            placed = request.model_copy(update={"place": placement.place})
            reply = await self._send_files(placement, tenant, conversation_id, placed)
            if not reply.moved:
                return reply
        raise Unavailable("the workspace moves to another runner")

    async def _send_files(
        self, placed_at: Process, tenant: str, conversation_id: str, request: FileRequest
    ) -> FileReply:
        """Send a request to a runner; raise `Unavailable` if it ends or does not reply in time."""
        subject = subjects.files(placed_at.runner, tenant, conversation_id)
        restores = isinstance(request, FileUnpack) or (
            not isinstance(request, WorkspaceForget) and request.place.snapshot is not None
        )
        finds = isinstance(request, McpRequest)
        timeout_s = RESTORE_TIMEOUT_S if restores else FIND_TIMEOUT_S if finds else FILES_TIMEOUT_S
        try:
            with self._until_ended(placed_at) as ended:
                data = request.model_dump_json().encode()
                reply = await self._bus.request(subject, data, timeout_s, unless=ended)
        except TimedOut as error:
            if not self._bus.connected:
                raise
            public = f"the tool-runner did not reply within {timeout_s:g} s"
            raise Unavailable(str(error), public=public) from error
        if not reply:
            raise Unavailable(ENDED)
        return FileReply.model_validate_json(reply)

    @contextmanager
    def _until_ended(self, process: Process) -> Generator[asyncio.Future[None]]:
        """Provide a future that is done when the lease of a process ends during the block."""
        ended = asyncio.get_running_loop().create_future()
        self._waiting[ended] = process
        try:
            yield ended
        finally:
            del self._waiting[ended]

    async def _removed(self, tenant: str, conversation_id: str, record: WorkspaceOwner) -> bool:
        """Request the removal of a workspace from its runner; return False if the workspace may remain."""
        lease = self._lease_of(record.runner)
        if lease is None:
            return False
        request = WorkspaceForget(snapshot=record.snapshot)
        try:
            reply = await self._send_files(lease, tenant, conversation_id, request)
        except Unavailable:
            return False
        return reply.error is None

    async def _store(self, key: str, record: WorkspaceOwner, over: Entry[WorkspaceOwner] | None) -> bool:
        if over is None:
            return await self._owners.create(key, record) is not None
        return await self._owners.update(key, record, over.revision) is not None

    def _changed(self, key: str, entry: Entry[calls.RunnerLease] | None) -> None:
        self._processes.pop(key.partition(".")[0], None)
        now = asyncio.get_running_loop().time()
        for ended, process in tuple(self._waiting.items()):
            is_same = entry is not None and entry.value.runner_epoch <= process.runner_epoch
            server, _, epoch = key.rpartition(".")
            of_server = epoch == str(process.runner_epoch) and server.partition(".")[0] == process.runner
            if (process.runner == key or of_server) and not is_same and not ended.done():
                ended.set_result(None)
        if entry is not None:
            self._renewed_at[key] = now
            return
        self._renewed_at.pop(key, None)
        self._ended_at[key.rpartition(".")[0]] = now
        for callback in self._on_end:
            callback()

    def _instances(self, server: str) -> tuple[workspaces.ToolServerProcess, ...]:
        known = self._processes.get(server)
        if known is None:
            found = (workspaces.ToolServerProcess.of(entry) for entry in self._leases.entries(f"{server}."))
            known = tuple(one for one in found if one is not None)
            if known:
                self._processes[server] = known
        return known

    def _lease_of(self, runner: str) -> calls.RunnerLease | None:
        entry = self._leases.get(runner)
        return None if entry is None else entry.value


def _placement(record: WorkspaceOwner) -> Placement:
    return Placement(record.runner, record.runner_epoch, workspaces.place_of(record), record.loss)
