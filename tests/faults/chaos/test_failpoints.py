"""Failpoints: processes die at a named point, and their runs continue."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from banksman.contracts.errors import BadInput, Unavailable
from banksman.runtime import failpoints
from banksman.runtime.failpoints import TESTING_VARIABLE, VARIABLE, Failpoint, arm, reach
from tests.support.chaos.fleet import OPTIONAL, Fleet
from tests.support.client import Client
from tests.support.model_server import ModelServer
from tests.support.scripted_models import ScriptedCall, ScriptedReply

pytestmark = pytest.mark.timeout(300)
"""Seconds; processes are restarted repeatedly, which is slow on a busy machine."""

WAIT_TIMEOUT_S = 60.0
RUNNER_POINTS: tuple[Failpoint, ...] = (
    "runner.before_claim",
    "runner.after_claim",
    "runner.begin",
    "runner.running",
    "runner.end",
    "runner.result_stored",
)
CLAIMED = {"runner.after_claim", "runner.begin", "runner.running", "runner.end"}
"""After the start and before the result, where the outcome is unknown."""


@pytest.fixture
def disarmed() -> Generator[None]:
    yield
    arm({})


async def test_an_unarmed_failpoint_does_nothing(disarmed: None) -> None:
    arm({TESTING_VARIABLE: "1", VARIABLE: "runner.end:error"})
    await reach("runner.begin")


async def test_an_armed_failpoint_fails(disarmed: None) -> None:
    arm({TESTING_VARIABLE: "1", VARIABLE: "runner.begin:sleep=0, runner.end:error"})
    await reach("runner.begin")
    with pytest.raises(Unavailable, match=r"failpoint runner\.end"):
        await reach("runner.end")


@pytest.mark.parametrize(
    ("environment", "field"),
    [
        ({VARIABLE: "runner.end:kill"}, TESTING_VARIABLE),
        ({TESTING_VARIABLE: "1", VARIABLE: "runner.somewhere:kill"}, "runner.somewhere"),
        ({TESTING_VARIABLE: "1", VARIABLE: "runner.end:explode"}, "explode"),
        ({TESTING_VARIABLE: "1", VARIABLE: "runner.end:sleep=long"}, "sleep=long"),
    ],
)
def test_an_invalid_failpoint_is_refused(disarmed: None, environment: dict[str, str], field: str) -> None:
    with pytest.raises(BadInput, match=field):
        arm(environment)


def test_no_service_starts_with_failpoints_outside_tests() -> None:
    command = [sys.executable, "-m", "banksman.cli", "workflows"]
    done = subprocess.run(command, env={VARIABLE: "runner.end:kill"}, capture_output=True, text=True)
    assert done.returncode == 2
    assert failpoints.TESTING_VARIABLE in done.stderr


@dataclass
class Rounds:
    """A fleet whose runs are interrupted one after another."""

    fleet: Fleet
    model: ModelServer
    client: Client
    number: int = 0

    async def arm(self, member: str, point: Failpoint, action: str = "kill") -> None:
        """Restart a member with an armed failpoint."""
        armed = {VARIABLE: f"{point}:{action}", TESTING_VARIABLE: "1"}
        self.fleet[member].once(**armed)
        starts = self.fleet[member].starts
        self.fleet[member].kill()
        await self.fleet[member].begun(starts + 1)
        await self.fleet[member].ready()

    async def run(self, *replies: ScriptedReply, **conversation: Any) -> tuple[str, str]:
        """Start a run; return its conversation and its id."""
        self.number += 1
        name = f"round-{self.number}"
        self.model.play(name, replies)
        chosen = await self.client.create(f"openai:scripted/{name}", **conversation)
        return chosen, await self.client.chat(chosen, "go")


@asynccontextmanager
async def rounds(directory: Path, *, gateways: int = 1) -> AsyncGenerator[Rounds]:
    async with ModelServer.running() as model:
        async with Fleet(directory, model.url, gateways=gateways, runners=1, without=OPTIONAL) as fleet:
            async with Client.connected(fleet.urls[0], timeout_s=WAIT_TIMEOUT_S) as client:
                yield Rounds(fleet, model, client)
        assert model.violations == []


async def interrupted_calls(tmp_path: Path, points: Sequence[Failpoint]) -> None:
    """P2: a call that kills its runner is executed at most once, and has one result."""
    async with rounds(tmp_path) as played:
        for number, point in enumerate(points):
            marker = f"mark-{number}"
            await played.arm("tool-runner-1", point)
            script = f"echo {marker} >> ledger; echo written; sleep 0.5"
            call = ScriptedReply(tool_calls=(ScriptedCall(name="bash", arguments={"command": script}),))
            conversation, run_id = await played.run(call, ScriptedReply(text="done"))
            await played.client.approve(run_id)
            outcome = await played.client.finished(run_id)
            [result] = played.client.events(conversation, "tool_call.completed")
            kind, times = result["data"]["error_kind"], played.fleet.executions(marker)
            assert outcome["status"] == "completed", (point, outcome)
            assert times <= 1, f"{point}: executed {times} times"
            if point in CLAIMED:
                assert kind == "unknown_outcome", point
            else:
                assert (kind, times) == (None, 1), point
            [result] = [
                message
                for message in played.model.requests(f"round-{played.number}")[-1].body["messages"]
                if message["role"] == "tool"
            ]
            assert (kind == "unknown_outcome") == ("outcome of this call is unknown" in str(result)), point


async def test_a_runner_that_dies_at_any_failpoint_executes_a_call_at_most_once(tmp_path: Path) -> None:
    """R39, P2, A03: at each of six points; a call that was not started is executed later."""
    await interrupted_calls(tmp_path, RUNNER_POINTS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_runner_that_dies_three_hundred_times_executes_each_call_at_most_once(
    tmp_path: Path,
) -> None:
    """P2: fifty times at each point, in any order."""
    points: list[Failpoint] = [point for point in RUNNER_POINTS for _ in range(50)]
    random.Random(1).shuffle(points)
    await interrupted_calls(tmp_path, points)
