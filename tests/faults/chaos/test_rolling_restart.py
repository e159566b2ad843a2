"""All replicas are restarted one after another while users use the system."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.faults.chaos.conftest import Stage
from tests.support.chaos.fleet import Fleet
from tests.support.chaos.verdict import under_traffic
from tests.support.history.records import Fault, Recording

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

REPLICAS = (
    ("agent-1", "gateway-1", "tool-runner-1", "workflows"),
    ("agent-2", "gateway-2", "tool-runner-2"),
)
EXIT_S = 30.0
"""Seconds for a service to hand over and end."""
HARMLESS = {"completed", "rejected", "cancelled"}
EXPECTED_KINDS = {None, "rejected", "denied", "not_executed", "cancelled"}
"""Error kinds of calls that are expected, and None for success."""
LOOKS = "read_file"
"""The error by which a workflow detects that a project does not exist yet."""


async def test_a_rolling_restart_fails_no_run(stage: Stage) -> None:
    """R39, P16, A35: SIGTERM drains and hands over; clients only notice a reconnect."""
    codes: dict[str, int] = {}
    took_s: dict[str, float] = {}

    async def restart(fleet: Fleet, name: str) -> None:
        began = time.monotonic()
        codes[name] = await fleet[name].restart()
        took_s[name] = time.monotonic() - began

    async def roll(fleet: Fleet, recording: Recording) -> None:
        for group in REPLICAS:
            async with asyncio.TaskGroup() as restarting:
                for name in group:
                    recording.add(Fault(what="restart", target=name))
                    restarting.create_task(restart(fleet, name))
            await fleet.ready()

    verdict = await under_traffic(stage.fleet, stage.model, seed=35, rate=2, strike=roll)

    print(f"{verdict}\n{took_s}")  # noqa: T201  # shown when the test fails
    assert verdict.good, f"{verdict}\n{verdict.log}"
    assert codes == {name: 0 for group in REPLICAS for name in group}
    assert max(took_s.values()) <= EXIT_S
    runs = verdict.history.runs.values()
    assert {str(run.ends[0].data["status"]) for run in runs} <= HARMLESS
    calls = verdict.history.calls.values()
    assert {call.error_kind for call in calls if call.requested.data["name"] != LOOKS} <= EXPECTED_KINDS
