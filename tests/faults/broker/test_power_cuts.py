"""Power cuts: everything acknowledged to a client is on the disk at that moment."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from websockets.exceptions import WebSocketException

from banksman.agent.logs.heads_recorder import HeadsRecorder
from banksman.agent.logs.usage_ledger import UsageLedger
from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.errors import NoResponders
from banksman.bus.jetstream import ApiError, last_message
from banksman.bus.names import APPROVALS, RUNS
from banksman.bus.storage.log import EventLog
from banksman.contracts import subjects
from banksman.contracts.errors import Unavailable
from banksman.contracts.work import ApprovalReply, StartRun
from banksman.log_integrity.damage import DamagedLogs
from banksman.log_integrity.heads import LogHeads, lost_ends
from tests.gateway.conftest import UNBOUNDED, Agent, Served, Socket, gateway_on
from tests.support.fixtures import connect, provision_all
from tests.support.nats import NatsServer, plain_config
from tests.support.volumes import Volume, require_volumes

pytestmark = pytest.mark.one_server

USERS = 4
IMAGE_MB = 96
WAIT_S = 60.0


@dataclass
class Acked:
    """The acknowledgements that users have received."""

    runs: dict[str, str] = field(default_factory=dict[str, str])
    """Accepted runs by conversation."""
    decisions: dict[str, str] = field(default_factory=dict[str, str])
    """Outcomes by approval."""
    events: dict[str, int] = field(default_factory=dict[str, int])
    """The number of the last stored event, by conversation."""

    def copy(self) -> Acked:
        return Acked(dict(self.runs), dict(self.decisions), dict(self.events))


@dataclass
class Lost:
    """The losses after a cut."""

    runs: int = 0
    decisions: int = 0
    events: int = 0
    alarms: int = 0
    """Logs that the check at start reports as damaged."""

    @property
    def anything(self) -> bool:
        return bool(self.runs or self.decisions or self.events or self.alarms)


@dataclass
class Installation:
    """A server on its own volume, a gateway, and its users."""

    server: NatsServer
    volume: Volume
    served: Served
    bus: Bus
    acked: Acked = field(default_factory=Acked)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at every acknowledgement."""

    async def user(self) -> None:
        """Start runs and decide their approval requests, without end."""
        agent = Agent(self.bus, self.served.tenant)
        while True:
            # While the server is frozen a response may be too late: then no client got an acknowledgement.
            with contextlib.suppress(TimeoutError, WebSocketException, OSError, KeyError):
                async with self.served.socket() as socket:
                    while True:
                        await self._run(socket, agent)

    async def more_is_acked(self, runs: int) -> None:
        """Wait until further runs were accepted, and an approval was decided since."""
        wanted, decided = len(self.acked.runs) + runs, len(self.acked.decisions)
        async with asyncio.timeout(WAIT_S):
            while len(self.acked.runs) < wanted or len(self.acked.decisions) == decided:
                self.news.clear()
                await self.news.wait()

    def cut(self, copy: Path) -> Acked:
        """Cut the power, store the state of the disk in `copy`, and let the server continue."""
        self.server.pause()
        try:
            self.volume.cut(copy)
            return self.acked.copy()
        finally:
            self.server.resume()

    async def _run(self, socket: Socket, agent: Agent) -> None:
        conversation = await socket.create()
        ack = await socket.request("chat.send", conversation_id=conversation, content="go")
        if ack["type"] != "ack":
            return
        self.acked.runs[conversation] = ack["run_id"]
        self.news.set()
        start = await agent.started(conversation)
        await agent.begin(start)
        self.acked.events[conversation] = 2
        approval_request = await agent.request_approval(start)
        self.acked.events[conversation] = 5
        verdict = random.choice(("approve", "reject"))
        reply = await socket.request("approval.reply", approval_id=approval_request.approval_id, all=verdict)
        if reply["type"] == "ack":
            self.acked.decisions[approval_request.approval_id] = reply["outcome"]
            self.news.set()


@asynccontextmanager
async def installation(directory: Path, tenant: str, *, sync_always: bool) -> AsyncGenerator[Installation]:
    with ExitStack() as stack:
        volume = stack.enter_context(
            Volume.made(directory / "disk", directory / "volume", megabytes=IMAGE_MB)
        )
        # The server log is on another volume: the promises do not include it.
        config = plain_config(sync_always=sync_always, max_file_store="20GB")
        server = NatsServer(config.replace("{store_dir}", str(volume.path / "store")), directory=directory)
        stack.enter_context(server)
        await asyncio.to_thread(provision_all, server)
        volume.sync()
        async with (
            await connect(server) as bus,
            gateway_on(server, bus, tenant, frames_per_s=UNBOUNDED) as served,
            DamagedLogs(bus) as damaged,
            UsageLedger(bus) as usage,
            HeadsRecorder(LogHeads(bus), damaged, usage, write_every_s=0.1),
            asyncio.TaskGroup() as group,
        ):
            there = Installation(server, volume, served, bus)
            users = [group.create_task(there.user()) for _ in range(USERS)]
            try:
                yield there
            finally:
                for task in users:
                    task.cancel()


async def lost_on(copy: Path, directory: Path, acked: Acked, tenant: str, *, sync_always: bool) -> Lost:
    """Start a server on the disk after the cut, and check every acknowledgement."""
    place = directory / "after"
    place.mkdir(exist_ok=True)
    with Volume.mounted(copy, directory / "mounted") as volume:
        config = plain_config(sync_always=sync_always).replace("{store_dir}", str(volume.path / "store"))
        with NatsServer(config, directory=place) as server:
            settings = NatsSettings(url=server.url, connect_timeout_s=10)
            async with await Bus(settings, name="after").open() as bus:
                return await _missing(bus, acked, tenant)


async def _missing(bus: Bus, acked: Acked, tenant: str) -> Lost:
    lost = Lost()
    try:
        for conversation, run_id in acked.runs.items():
            work = await last_message(bus, RUNS, subjects.run_work(tenant, conversation))
            lost.runs += work is None or StartRun.model_validate_json(work.data).run_id != run_id
        for approval_id, outcome in acked.decisions.items():
            reply = await last_message(bus, APPROVALS, subjects.approval_reply(tenant, approval_id))
            lost.decisions += (
                reply is None or ApprovalReply.model_validate_json(reply.data).outcome != outcome
            )
        for conversation, last_seq in acked.events.items():
            commits = await EventLog(bus).read(tenant, conversation, leader=True)
            lost.events += not commits or commits[-1].commit.last_seq < last_seq
        lost.alarms = len(await lost_ends(bus))
    except (ApiError, Unavailable, NoResponders):
        # A whole stream is missing.
        return Lost(len(acked.runs), len(acked.decisions), len(acked.events))
    return lost


async def cuts(directory: Path, tenant: str, rounds: int) -> None:
    require_volumes()
    async with installation(directory, tenant, sync_always=True) as there:
        for number in range(rounds):
            await there.more_is_acked(runs=5)
            acked = there.cut(directory / "cut")
            lost = await lost_on(directory / "cut", directory, acked, tenant, sync_always=True)
            assert not lost.anything, f"cut {number + 1} of {len(acked.runs)} runs: {lost}"


@pytest.mark.timeout(180)
async def test_a_power_cut_loses_no_accepted_run_and_no_decision(tmp_path: Path, tenant: str) -> None:
    """A02, P1b: if each write is synced, everything acknowledged is on the disk."""
    await cuts(tmp_path, tenant, rounds=2)


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_twenty_power_cuts_lose_no_accepted_run_and_no_decision(tmp_path: Path, tenant: str) -> None:
    """A02, P1b, at length: `make power-cuts`."""
    await cuts(tmp_path, tenant, rounds=20)


@pytest.mark.timeout(180)
async def test_the_same_power_cut_loses_runs_if_writes_are_not_synced(tmp_path: Path, tenant: str) -> None:
    """A02: the negative control. It shows that these cuts are real, and the effect of `sync_interval`."""
    require_volumes()
    async with installation(tmp_path, tenant, sync_always=False) as there:
        await there.more_is_acked(runs=5)
        acked = there.cut(tmp_path / "cut")
        lost = await lost_on(tmp_path / "cut", tmp_path, acked, tenant, sync_always=False)
    assert lost.runs > 0
