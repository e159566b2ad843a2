"""Services whose clocks are wrong."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from pathlib import Path

import pytest
import pytest_asyncio

from banksman.bus import jetstream
from banksman.bus.names import EVENTS
from banksman.bus.storage.log import stored_commit
from banksman.contracts import subjects
from banksman.contracts.events import RunFinished, RunStarted
from banksman.contracts.ids import new_id
from tests.faults.chaos.conftest import Stage
from tests.support import privileged
from tests.support.chaos.fleet import Fleet
from tests.support.chaos.verdict import under_traffic
from tests.support.client import Client
from tests.support.history.records import Fault, Recording
from tests.support.polling import scripted_delay
from tests.support.scripted_models import Gate, ScriptedReply

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

SHIFT_S = 300
SHIFTS_S = {
    "agent-1": SHIFT_S,
    "agent-2": -SHIFT_S,
    "gateway-1": SHIFT_S,
    "tool-runner-1": SHIFT_S,
    "tool-runner-2": -SHIFT_S,
}
"""The difference of two agents, which exceeds the time-out of a run."""
TRAFFIC_S = 8.0
LIMIT_S = 20
BRIEF = "brief"
"""The assistant whose runs time out after `LIMIT_S` seconds."""
FAKETIME = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)


def shifted(seconds: int) -> dict[str, str]:
    """Return the variables of a process with a shifted clock; intervals are not affected, as in reality."""
    return {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"{seconds:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def apart(stage: Stage) -> AsyncGenerator[Stage]:
    """The fleet, in which every service has another time of day."""
    found = FAKETIME is not None and shutil.which("faketime") is not None
    privileged.require("faketime", found, "services whose clocks are wrong")
    try:
        await _live_at(stage, {name: shifted(seconds) for name, seconds in SHIFTS_S.items()})
        yield stage
    finally:
        await _live_at(stage, {name: {} for name in SHIFTS_S})


async def test_clocks_that_are_wrong_by_minutes_change_nothing(apart: Stage) -> None:
    """A10: approvals, runs, leases and call time-outs use intervals and the broker's clock."""

    async def wait_without_faults(fleet: Fleet, recording: Recording) -> None:
        for name, seconds in SHIFTS_S.items():
            recording.add(Fault(what=f"clock {seconds:+d} s", target=name))
        await scripted_delay(TRAFFIC_S)

    verdict = await under_traffic(apart.fleet, apart.model, seed=10, rate=3, strike=wait_without_faults)

    print(verdict)  # noqa: T201  # shown when the test fails
    assert verdict.good, f"{verdict}\n{verdict.log}"
    statuses = {str(run.ends[0].data["status"]) for run in verdict.history.runs.values()}
    assert statuses <= {"completed", "rejected", "cancelled"}


async def test_the_time_limit_uses_the_brokers_clock_after_a_takeover(apart: Stage) -> None:
    """P12: agents ten minutes apart take over two runs from each other; each times out once, at its limit."""
    first, second = apart.fleet["agent-1"], apart.fleet["agent-2"]
    response = await apart.fleet.http.post(
        f"{apart.fleet.urls[0]}/context/assistants", json={"id": BRIEF, "limits": {"run_timeout_s": LIMIT_S}}
    )
    assert response.status_code in (201, 409), response.text
    async with apart.connected() as client:
        try:
            second.freeze()
            early = await _parked(apart, client, "early")
            second.thaw()
            first.freeze()
            await _requested_again(apart, client, early[1])
            late = await _parked(apart, client, "late")
        finally:
            first.thaw()
            second.thaw()
        second.freeze()
        try:
            outcomes = [await client.finished(run_id) for _, run_id in (early, late)]
        finally:
            second.thaw()
        ends = [len(client.events(conversation, "run.finished")) for conversation, _ in (early, late)]

    assert [outcome["status"] for outcome in outcomes] == ["timed_out"] * 2
    assert ends == [1, 1]
    for conversation, _ in (early, late):
        started, ended = await _stored_times(apart.fleet, conversation)
        took_s = (ended - started).total_seconds()
        # The tolerance covers a busy machine and is far below the error of a wrong clock.
        assert LIMIT_S - 2 < took_s < LIMIT_S + SHIFT_S / 2


async def _parked(stage: Stage, client: Client, name: str) -> tuple[str, str]:
    """Start a run whose model never replies."""
    held = ScriptedReply(text="never", gate=Gate(name=new_id(f"{name}-")))
    conversation, run_id = await stage.run(client, held, assistant=BRIEF)
    await stage.model.wait_for_requests(stage.scripts[-1], 1, timeout_s=60)
    return conversation, run_id


async def _requested_again(stage: Stage, client: Client, run_id: str) -> None:
    """Wait until another agent has taken over the latest run, or the run has timed out."""
    again = asyncio.create_task(stage.model.wait_for_requests(stage.scripts[-1], 2, timeout_s=60))
    ended = asyncio.create_task(client.finished(run_id))
    _, left = await asyncio.wait({again, ended}, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)


async def _stored_times(fleet: Fleet, conversation: str) -> tuple[datetime, datetime]:
    """Return when the broker stored the start and the end of a conversation's run."""
    times: dict[type[object], datetime] = {}
    async with fleet.operator() as bus:
        async for message in jetstream.read(bus, EVENTS, subjects.conversation("local", conversation)):
            for event in stored_commit(message).commit.events:
                times[type(event.data)] = datetime.fromisoformat(message.time)
    return times[RunStarted], times[RunFinished]


async def _live_at(stage: Stage, environments: Mapping[str, dict[str, str]]) -> None:
    """Restart services, each with its own clock."""
    async with asyncio.TaskGroup() as restarting:
        for name, environment in environments.items():
            stage.fleet[name].environment = environment
            restarting.create_task(stage.restarted(name))
