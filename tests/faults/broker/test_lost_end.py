"""The end of the logs is lost under a running system: one conversation is refused, the others continue."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from banksman.bus.names import EVENTS
from banksman.bus.storage.tail import last_sequence
from banksman.log_integrity.heads import LogHeads
from tests.faults.broker.commands import banksman
from tests.faults.broker.stores import cut_the_tail, stream_of
from tests.support.chaos.fleet import OPTIONAL, Fleet
from tests.support.client import Client
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel

pytestmark = [pytest.mark.timeout(300), pytest.mark.one_server]
WAIT_TIMEOUT_S = 60.0


async def test_a_log_that_lost_its_end_is_refused_until_an_operator_accepts_it(
    place: Path, model: ScriptedModel
) -> None:
    """M18: numbers are assigned again; a client with the old ones gets `resync_required`."""
    says = [
        ScriptedReply(text="Well."),
        ScriptedReply(text="Well, well."),
        ScriptedReply(text="Again."),
        ScriptedReply(text="And again."),
    ]
    async with Fleet(place, model.url, agents=1, gateways=1, runners=1, without=OPTIONAL) as fleet:
        async with Client.connected(fleet.urls[0], timeout_s=WAIT_TIMEOUT_S) as client:
            whole, cut = (
                await client.create(model.play("whole", says)),
                await client.create(model.play("cut", says)),
            )
            await client.run(whole, "first")
            await client.run(cut, "second")
            position = client.events(cut)[-1]
            await _counted(fleet)
        await _stopped(fleet)
        cut_the_tail(stream_of(fleet.nats.data.nats / "streams"))
        await _started(fleet)

        for service in ("agent-1", "gateway-1"):
            said = await _readyz(fleet, service)
            assert said["ready"] and cut in said["warnings"]["logs"], said
            assert whole not in said["warnings"]["logs"]
        async with Client.connected(fleet.urls[0], timeout_s=WAIT_TIMEOUT_S) as client:
            refused = await client.request("chat.send", conversation_id=cut, content="on?")
            assert (refused["type"], refused["code"], refused["retryable"]) == ("error", "conflict", False)
            assert "is damaged: its end is lost" in refused["message"]
            assert "`banksman check`" in refused["message"]
            await client.request("subscribe", conversation_id=whole, after_seq=0, detail="full")
            assert (await client.run(whole, "on!"))["status"] == "completed"
            assert (await _resumed(client, cut, position))["type"] == "resync_required"
            await client.request("subscribe", conversation_id=cut, after_seq=0, detail="full")
            await client.event("error", code="conflict")

            checked = await banksman(fleet, "check")
            assert (checked.code, f"/{cut}: its end is lost" in checked.out) == (2, True), checked
            assert whole not in checked.out and "banksman accept" in checked.err
            [name] = [line.partition(":")[0] for line in checked.out.splitlines()]
            accepted = await banksman(fleet, "accept", name)
            assert (accepted.code, accepted.out) == (
                0,
                f"{name}: runs continue with the remaining events\n",
            )
            assert (await banksman(fleet, "check")).out == "all logs are intact\n"

            assert (await _resumed(client, cut, position))["type"] == "resync_required"
            head = await client.request("subscribe", conversation_id=cut, after_seq=0, detail="full")
            while head["head_seq"] <= position["seq"]:
                await _run_once_it_may(client, cut)
                head = await client.request("subscribe", conversation_id=cut, after_seq=0, detail="full")
            assert (await _resumed(client, cut, position))["type"] == "resync_required"
            assert head["log_epoch"] != position["log_epoch"]
        assert "warnings" in await _readyz(fleet, "agent-1")


async def _run_once_it_may(client: Client, conversation: str) -> None:
    """Services are notified shortly after a log was accepted."""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            reply = await client.request("chat.send", conversation_id=conversation, content="go on")
            if reply["type"] == "ack":
                await client.finished(reply["run_id"])
                return


async def _resumed(client: Client, conversation: str, position: dict[str, Any]) -> dict[str, Any]:
    """Return the response to a client that resumes from its position."""
    return await client.request(
        "subscribe",
        conversation_id=conversation,
        after_seq=position["seq"],
        log_epoch=position["log_epoch"],
    )


async def _counted(fleet: Fleet) -> None:
    """Wait until an agent has recorded the stored commits."""
    async with fleet.operator() as bus, asyncio.timeout(WAIT_TIMEOUT_S):
        last = await last_sequence(bus, EVENTS)

        async def counted() -> bool:
            segments = (await LogHeads(bus).segments()).values()
            return any(last in heads.values() for heads in segments)

        await eventually(counted, WAIT_TIMEOUT_S)


async def _stopped(fleet: Fleet) -> None:
    for member in fleet.members.values():
        await member.stop()


async def _started(fleet: Fleet) -> None:
    fleet["nats"].start()
    await fleet["nats"].ready()
    for member in fleet.members.values():
        member.start()
    await fleet.ready()


async def _readyz(fleet: Fleet, service: str) -> dict[str, Any]:
    return dict((await fleet.http.get(fleet[service].spec.ready_url)).json())
