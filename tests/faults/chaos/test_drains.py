"""SIGTERM: in any state a service ends within thirty seconds, and loses nothing (P16)."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import AsyncExitStack

import pytest
from websockets.asyncio.client import connect

from tests.faults.chaos.conftest import WAIT_TIMEOUT_S, Stage, bash, until
from tests.support.chaos.fleet import START_S, Member
from tests.support.scripted_models import Gate, ScriptedReply
from tests.support.timeouts import deadline

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

EXIT_S = 30.0
"""Seconds for a service to hand over and end; twice as many on a busy machine."""
SOCKETS = 200
"""Websockets at two gateways, each subscribed."""
SERVICES = ("agent-1", "agent-2", "gateway-1", "gateway-2", "tool-runner-1", "tool-runner-2", "workflows")


@pytest.mark.parametrize("broker", [pytest.param("serves", marks=pytest.mark.soak), "is gone"])
async def test_every_service_drains_in_time_under_full_load(stage: Stage, marker: str, broker: str) -> None:
    """R39, P16: a ten-minute command, an open model stream, and two hundred clients."""
    fleet = stage.fleet
    members = [fleet[name] for name in SERVICES]
    async with AsyncExitStack() as clients:
        async with stage.connected(0) as client:
            conversation, long = await stage.run(client, bash(marker, 600), ScriptedReply(text="done"))
            await until(lambda: stage.fleet.executions(marker) == 1)
            held = ScriptedReply(text="at last").model_copy(update={"gate": Gate(name=marker)})
            _, answering = await stage.run(client, held)
            await stage.model.wait_for_requests(stage.scripts[-1], 1, timeout_s=60)
        async with asyncio.TaskGroup() as connecting:
            for number in range(SOCKETS):
                connecting.create_task(_follow(clients, fleet.urls[number % 2], conversation))
        if broker == "is gone":
            await fleet.servers[0].stop()
        began = time.monotonic()
        async with asyncio.TaskGroup() as ending:
            ends = {member.name: ending.create_task(_ended(member, began)) for member in members}
    took_s = {name: end.result() for name, end in ends.items()}
    print(took_s)  # noqa: T201  # shown when the test fails
    stage.model.open_gate(marker)
    for member in (*fleet.servers, *members):
        member.start()
    await fleet.ready(within_s=2 * START_S)
    outcomes = [await _outcome(stage, run_id) for run_id in (long, answering)]

    assert outcomes == ["completed", "completed"]
    assert stage.fleet.executions(marker) == 1
    assert max(took_s.values()) <= 2 * EXIT_S, took_s
    if broker == "serves":
        assert {member.exit_codes[-1] for member in members} == {0}


async def _follow(clients: AsyncExitStack, url: str, conversation: str) -> None:
    socket = await clients.enter_async_context(connect(f"{url.replace('http', 'ws', 1)}/ws", proxy=None))
    await socket.send(json.dumps({"type": "hello", "id": "1"}))
    await socket.send(
        json.dumps({"type": "subscribe", "id": "2", "conversation_id": conversation, "after_seq": 0})
    )
    async with deadline(f"the replay of {conversation} did not end"):
        while json.loads(await socket.recv())["type"] != "replay.done":
            pass


async def _ended(member: Member, began: float) -> float:
    await member.stop(signal.SIGTERM)
    return round(time.monotonic() - began, 1)


async def _outcome(stage: Stage, run_id: str) -> str:
    url = f"{stage.fleet.urls[1]}/context/runs/{run_id}"
    response = await stage.fleet.http.get(url, params={"wait_s": WAIT_TIMEOUT_S}, timeout=WAIT_TIMEOUT_S + 30)
    return response.json()["status"]
