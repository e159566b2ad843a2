"""Services whose clocks are wrong."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from banksman.testing import privileged
from banksman.testing.chaos.fleet import Fleet
from banksman.testing.chaos.storm import under_traffic
from banksman.testing.history.records import Fault, Recording
from tests.chaos.conftest import Stage

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

SHIFTS_S = {"agent-1": 240, "gateway-1": 300, "tool-runner-1": 300, "tool-runner-2": -300}
"""Agents among themselves must agree to within the time-out of a run, five minutes: they share its clock."""
TRAFFIC_S = 8.0
BY_THE_CLOCK = {"effects_lie_between_start_and_end"}
"""Checks that compare times which different services wrote."""
FAKETIME = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)


def shifted(seconds: int) -> dict[str, str]:
    """What a process is told that shall live so far ahead; intervals stay what they are, as in reality."""
    return {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"{seconds:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


async def test_clocks_that_are_wrong_by_minutes_change_nothing(stage: Stage) -> None:
    """A10: approvals, leases and the time of calls go by intervals, and by the broker's clock."""
    found = FAKETIME is not None and shutil.which("faketime") is not None
    privileged.require("faketime", found, "services whose clocks are wrong")

    async def go_on(fleet: Fleet, recording: Recording) -> None:
        for name, seconds in SHIFTS_S.items():
            recording.add(Fault(what=f"clock {seconds:+d} s", target=name))
        await asyncio.sleep(TRAFFIC_S)

    try:
        await _live_at(stage, {name: shifted(seconds) for name, seconds in SHIFTS_S.items()})
        verdict = await under_traffic(stage.fleet, stage.model, seed=10, rate=3, strike=go_on)
    finally:
        await _live_at(stage, {name: {} for name in SHIFTS_S})

    print(verdict)  # noqa: T201  # shown when the test fails
    assert verdict.breaches.keys() <= BY_THE_CLOCK, f"{verdict}\n{verdict.log}"
    assert verdict.problems == []
    statuses = {str(run.ends[0].data["status"]) for run in verdict.history.runs.values()}
    assert statuses <= {"completed", "rejected", "cancelled"}


async def _live_at(stage: Stage, environments: Mapping[str, dict[str, str]]) -> None:
    """Start services anew, each with its clock."""
    async with asyncio.TaskGroup() as restarting:
        for name, environment in environments.items():
            stage.fleet[name].environment = environment
            restarting.create_task(stage.restarted(name))
