"""P22: a loss in a log is named, also when it is the second one, and when a report of it is lost too.

The files are damaged while everything is stopped, as by `banksman down`, and started as by `banksman up`.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from banksman.bus.names import DAMAGED, EVENTS, HEADS, kv_stream, kv_subject
from banksman.contracts import subjects
from tests.faults.broker.commands import banksman
from tests.faults.broker.stores import flip_in_all_below, flip_in_last_on, stream_of
from tests.support.chaos.fleet import OPTIONAL, Fleet
from tests.support.client import Client
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel

pytestmark = [pytest.mark.timeout(300), pytest.mark.one_server]
WAIT_TIMEOUT_S = 60.0
TENANT = "local"
Flip = Callable[[Path], object]
"""Damages a store."""


class Damaged:
    """A system with three conversations, which is stopped, damaged and started again."""

    def __init__(self, fleet: Fleet, logs: list[str], heads: dict[str, int]) -> None:
        self.fleet = fleet
        self.logs = logs
        self.heads = heads
        """The last event that a client has seen, by conversation."""

    async def restart(self, *flips: Flip) -> dict[str, str]:
        """Stop everything in order, damage the store and start again; return the agent's warnings."""
        others = [member for name, member in self.fleet.members.items() if name != "nats"]
        for member in (*others, self.fleet["nats"]):
            await member.stop(signal.SIGTERM)
        for flip in flips:
            flip(self.fleet.nats.data.store)
        self.fleet["nats"].start()
        await self.fleet["nats"].ready()
        for member in others:
            member.start()
        await self.fleet.ready()
        return await self.warnings("agent-1")

    async def warnings(self, service: str) -> dict[str, str]:
        said = (await self.fleet.http.get(self.fleet[service].spec.ready_url)).json()
        assert said["ready"], said
        return dict(said.get("warnings", {}))

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client]:
        async with Client.connected(self.fleet.urls[0], timeout_s=WAIT_TIMEOUT_S) as client:
            yield client

    async def refused(self, conversation: str) -> None:
        """Send a message; the refusal names the loss and the remedy."""
        async with self.client() as client:
            reply = await client.request("chat.send", conversation_id=conversation, content="on?")
            assert (reply["type"], reply.get("code")) == ("error", "conflict"), reply
            assert "its end is lost" in reply["message"] and "`banksman check`" in reply["message"]


@asynccontextmanager
async def damaged(place: Path, model: ScriptedModel) -> AsyncGenerator[Damaged]:
    async with Fleet(place, model.url, agents=1, gateways=1, runners=1, without=OPTIONAL) as fleet:
        logs: list[str] = []
        heads: dict[str, int] = {}
        async with Client.connected(fleet.urls[0], timeout_s=WAIT_TIMEOUT_S) as client:
            for name in ("first", "second", "third"):
                log = await client.create(model.play(name, [ScriptedReply(text=t) for t in "abcd"]))
                assert (await client.run(log, "go"))["status"] == "completed"
                heads[log] = client.events(log)[-1]["seq"]
                logs.append(log)
        yield Damaged(fleet, logs, heads)


def last_commit(conversation: str) -> Flip:
    return lambda store: flip_in_last_on(
        stream_of(store, EVENTS), subjects.conversation(TENANT, conversation)
    )


def finding(conversation: str) -> Flip:
    """The report of a damaged log that all services read."""
    return lambda store: flip_in_last_on(
        stream_of(store, kv_stream(DAMAGED)), kv_subject(DAMAGED, f"{TENANT}.{conversation}")
    )


def record(keys: str = "") -> Flip:
    """The stored record of the ends of logs: the messages whose keys have a prefix."""
    return lambda store: flip_in_all_below(stream_of(store, kv_stream(HEADS)), kv_subject(HEADS, keys))


async def test_each_loss_is_named_without_any_commit_between_them(place: Path, model: ScriptedModel) -> None:
    async with damaged(place, model) as system:
        one, two, three = system.logs
        assert one in (await system.restart(last_commit(one)))["logs"]
        warned = (await system.restart(last_commit(two)))["logs"]
        assert one in warned and two in warned, "the second loss is not found"
        warned = (await system.restart(finding(one), last_commit(three)))["logs"]
        assert one in warned and two in warned and three in warned
        for log in system.logs:
            await system.refused(log)
        warned = (await system.warnings("gateway-1"))["logs"]
        assert one in warned and two in warned and three in warned


async def test_the_end_of_another_log_is_lost_after_a_loss_and_a_fresh_start(
    place: Path, model: ScriptedModel
) -> None:
    """Commits of a third conversation between the two losses hide nothing."""
    async with damaged(place, model) as system:
        one, two, three = system.logs
        assert one in (await system.restart(last_commit(one)))["logs"]
        async with system.client() as client:
            await client.request("subscribe", conversation_id=three, after_seq=0, detail="full")
            assert (await client.run(three, "more"))["status"] == "completed"
        warned = (await system.restart(last_commit(two)))["logs"]
        assert one in warned and two in warned and three not in warned
        await system.refused(two)


async def test_a_lost_copy_of_the_record_hides_no_loss(place: Path, model: ScriptedModel) -> None:
    """Before, while and after the lost part of the record is stored again."""
    async with damaged(place, model) as system:
        one, two, three = system.logs
        await system.restart(record("a."), last_commit(one))
        await system.refused(one)
        assert one in (await system.restart(record("b.")))["logs"]
        warned = await system.restart(record("a."), finding(one), last_commit(two))
        assert one in warned["logs"] and two in warned["logs"]
        assert three not in warned["logs"]


async def test_the_system_states_that_it_cannot_vouch_until_its_record_is_complete(
    place: Path, model: ScriptedModel
) -> None:
    async with damaged(place, model) as system:
        one, two, three = system.logs
        assert one in (await system.restart(last_commit(one)))["logs"]
        warned = await system.restart(record())
        assert one in warned["logs"], "knowledge of the loss was only in the record"

        async def complete() -> bool:
            return "log_record" not in await system.warnings("agent-1")

        await eventually(complete, WAIT_TIMEOUT_S)
        warned = await system.restart(last_commit(two))
        assert one in warned["logs"] and two in warned["logs"] and three not in warned["logs"]


async def test_no_seen_sequence_names_another_event(place: Path, model: ScriptedModel) -> None:
    """After the operator accepted the losses, the logs continue in another epoch."""
    async with damaged(place, model) as system:
        one, two, _ = system.logs
        seen = {log: await _epoch(system, log) for log in (one, two)}
        await system.restart(last_commit(one))
        await system.restart(last_commit(two))
        assert (await banksman(system.fleet, "accept", "--all")).code == 0
        assert "logs" not in await system.restart()
        for log in (one, two):
            async with system.client() as client:
                await client.request("subscribe", conversation_id=log, after_seq=0, detail="full")
                assert (await client.run(log, "more"))["status"] == "completed"
            assert await _epoch(system, log) != seen[log]
        assert two in (await system.restart(last_commit(two)))["logs"]


async def _epoch(system: Damaged, log: str) -> Any:
    async with system.client() as client:
        return (await client.request("subscribe", conversation_id=log, after_seq=0))["log_epoch"]
