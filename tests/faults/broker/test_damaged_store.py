"""A store altered under the server: the server starts without a report, and the product detects the loss."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.dead import dead_letter, store_late_result
from banksman.bus.jetstream import delete_message
from banksman.bus.names import EVENTS
from banksman.bus.storage.log import EventLog
from banksman.cli.operator.recovery import cut
from banksman.contracts import subjects
from banksman.contracts.errors import Conflict
from banksman.contracts.events import Commit, ConversationUpdated, HistoryCut
from banksman.log_integrity.check import check_logs
from banksman.log_integrity.damage import DamagedLogs
from tests.bus.test_late_results import late
from tests.faults.broker.stores import blocks, flip_a_bit, stream_of
from tests.gateway.conftest import Agent, Served, gateway_on
from tests.support.fixtures import connect
from tests.support.nats import NatsServer

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_server]
BIG = 300_000
"""Characters of an event, so that a log reaches over several of the store's blocks of 8 MB."""
COMMITS = 60


def test_a_log_damaged_by_a_bit_flip_gets_no_new_runs_and_others_continue(
    own_nats: NatsServer, tenant: str
) -> None:
    hurt, whole = asyncio.run(_written(own_nats, tenant))
    own_nats.stop()
    events = stream_of(own_nats.directory / "store")
    assert len(blocks(events)) > 1, "the log is to reach over several blocks"
    flip_a_bit(events)
    own_nats.start()
    asyncio.run(_is_noticed(own_nats, tenant, hurt, whole))
    checked = _banksman(own_nats, "check")
    assert checked.returncode == 2
    assert f"{tenant}/{hurt}: events " in checked.stdout
    assert whole not in checked.stdout


def test_intact_logs_pass_the_check(own_nats: NatsServer, tenant: str) -> None:
    asyncio.run(_written(own_nats, tenant))
    assert asyncio.run(_damages(own_nats)) == []


async def test_a_foreign_event_is_found(own_nats: NatsServer, tenant: str) -> None:
    """A second numbering in the same log, as two systems on one store would write it."""
    async with await connect(own_nats) as bus:
        agent = Agent(bus, tenant)
        await agent.commit("c1", None, ConversationUpdated(title="ours"))
        stored = (await EventLog(bus).read(tenant, "c1", leader=True))[-1]
        foreign = Agent(bus, tenant)
        foreign._ends["c1"] = (stored.stream_seq, 1)  # it continues from our end
        await foreign.commit("c1", None, ConversationUpdated(title="theirs"))
    [damage] = await _damages(own_nats)
    assert damage[0] == f"{tenant}.c1"
    assert "is from another log epoch" in damage[1]


async def test_log_with_a_gap_continues_before_it_and_the_rest_is_in_a_file(
    own_nats: NatsServer, tenant: str, tmp_path: Path
) -> None:
    """The log states the lost events. Until an operator decides, the events are left as they are."""
    async with await connect(own_nats) as bus:
        agent = Agent(bus, tenant)
        for number in range(6):
            await agent.commit("c1", None, ConversationUpdated(title=str(number)), owned=False)
        commits = await EventLog(bus).read(tenant, "c1", leader=True)
        assert await delete_message(bus, EVENTS, commits[3].stream_seq)
        await DamagedLogs(bus).report(f"{tenant}.c1", "events 4 to 4 are missing")
        name = f"{tenant}/c1"

        refused = await asyncio.to_thread(_banksman, own_nats, "accept", name)
        assert (refused.returncode, "`--set-aside DIRECTORY`" in refused.stderr) == (2, True), refused
        assert await jetstream.count_below(bus, EVENTS, subjects.conversation(tenant, "c1")) == 5
        words = ("accept", name, "--set-aside", str(tmp_path))
        done = await asyncio.to_thread(_banksman, own_nats, *words)
        assert (done.returncode, done.stdout) == (0, f"{name}: runs continue with the remaining events\n")

        lines = (tmp_path / f"{tenant}.c1.jsonl").read_text().splitlines()
        stored = [Commit.model_validate(json.loads(line)["commit"]) for line in lines]
        assert [commit.first_seq for commit in stored] == [5, 6]
        left = await EventLog(bus).read(tenant, "c1", leader=True)
        bodies = [event.data for commit in left for event in commit.commit.events]
        titles = [ConversationUpdated(title=str(number)) for number in range(3)]
        assert bodies == [*titles, HistoryCut(first_missing=4, set_aside=2)]
        assert bodies[-1].type == "history.cut"
        assert len({commit.commit.log_epoch for commit in left}) == 2
    assert await _damages(own_nats) == []


async def test_log_without_its_beginning_stays_and_is_in_a_file(
    own_nats: NatsServer, tenant: str, tmp_path: Path
) -> None:
    async with await connect(own_nats) as bus:
        agent = Agent(bus, tenant)
        for title in ("a", "b"):
            await agent.commit("c1", None, ConversationUpdated(title=title), owned=False)
        commits = await EventLog(bus).read(tenant, "c1", leader=True)
        assert await delete_message(bus, EVENTS, commits[0].stream_seq)
        with pytest.raises(Conflict, match="no commit is stored before the gap"):
            await cut(bus, tenant, "c1", tmp_path)
        assert await jetstream.count_below(bus, EVENTS, subjects.conversation(tenant, "c1")) == 1
    assert len((tmp_path / f"{tenant}.c1.jsonl").read_text().splitlines()) == 1


def test_commands_report_the_invalid_value_and_the_expected_one(own_nats: NatsServer) -> None:
    unknown, malformed, nothing = (
        _banksman(own_nats, "accept", "t/c"),
        _banksman(own_nats, "accept", "c"),
        _banksman(own_nats, "accept", "--all"),
    )
    assert (unknown.returncode, "a log listed by `banksman check`, got 't/c'" in unknown.stderr) == (2, True)
    assert (malformed.returncode, "TENANT/CONVERSATION" in malformed.stderr) == (2, True)
    assert (nothing.returncode, nothing.stdout) == (0, "no log is damaged\n")


def test_commands_name_the_stream_that_is_missing() -> None:
    with NatsServer() as empty:
        for words, stream in ((("check",), "EVENTS"), (("dead", "ls"), "DEAD")):
            refused = _banksman(empty, *words)
            assert (refused.returncode, f"stream {stream} is missing" in refused.stderr) == (2, True)


def test_dead_letters_are_a_warning_and_notes_are_not(own_nats: NatsServer, tenant: str) -> None:
    asyncio.run(_noted(own_nats, tenant))
    listed = _banksman(own_nats, "dead", "ls")
    assert (listed.returncode, "late_result" in listed.stdout) == (0, True)
    asyncio.run(_dead_lettered(own_nats))
    assert _banksman(own_nats, "dead", "ls").returncode == 1
    assert _banksman(own_nats, "dead", "ls", "--stream", "NOTES").returncode == 0


async def _noted(server: NatsServer, tenant: str) -> None:
    async with await connect(server) as bus:
        await store_late_result(bus, late(tenant))


async def _dead_lettered(server: NatsServer) -> None:
    async with await connect(server) as bus:
        await dead_letter(bus, subject="x", stream="RUNS", stream_seq=1, reason="unreadable", payload=b"?")


def _banksman(server: NatsServer, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "banksman.cli", *words],
        env=_environment(server),
        capture_output=True,
        text=True,
    )


async def _written(server: NatsServer, tenant: str) -> tuple[str, str]:
    """A conversation with a log over several blocks, and one whose log is in the last of them."""
    async with _gateway(server, tenant) as (bus, served):
        async with served.socket() as socket:
            hurt, whole = await socket.create(), await socket.create()
        agent = Agent(bus, tenant)
        for number in range(COMMITS):
            await agent.commit(hurt, None, ConversationUpdated(title=f"{number} " + "x" * BIG))
        await agent.commit(whole, None, ConversationUpdated(title="short"))
        return hurt, whole


async def _is_noticed(server: NatsServer, tenant: str, hurt: str, whole: str) -> None:
    [damage] = await _damages(server)
    assert damage[0] == f"{tenant}.{hurt}"
    async with _gateway(server, tenant) as (_, served):
        async with served.socket() as socket:
            refused = await socket.request("chat.send", conversation_id=hurt, content="on?")
            assert (refused["type"], refused["code"], refused["retryable"]) == ("error", "conflict", False)
            assert f"the log of {hurt} is damaged" in refused["message"]
            accepted = await socket.request("chat.send", conversation_id=whole, content="on!")
            assert accepted["type"] == "ack"


async def _damages(server: NatsServer) -> list[tuple[str, str]]:
    async with await connect(server) as bus:
        return [damage async for damage in check_logs(bus)]


@asynccontextmanager
async def _gateway(server: NatsServer, tenant: str) -> AsyncGenerator[tuple[Bus, Served]]:
    async with await connect(server) as bus, gateway_on(server, bus, tenant) as served:
        yield bus, served


def _environment(server: NatsServer) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BANKSMAN_")}
    return {
        **kept,
        "BANKSMAN_NATS__URL": server.url,
        "BANKSMAN_NATS__MONITORING_URL": server.monitoring_url,
    }
