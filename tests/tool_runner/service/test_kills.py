"""A runner that is killed at any moment while it starts commands."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest
from tests.support.fixtures import SecuredNats
from tests.support.polling import scripted_delay
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.tool_runner.service.owner import Owner, owning
from tests.tool_runner.service.processes import Runners, running

from banksman.contracts.ids import new_id
from banksman.tool_runner.sandbox.bwrap.processes import wait_exit

CALLS = 4
"""Calls in flight at the moment of a kill; on one core a runner starts no more at a time."""
SPREAD_S = 0.02


async def start_one(owner: Owner, delay_s: float, script: str) -> None:
    await scripted_delay(delay_s)
    request = owner.request("bash", command=script)
    await owner.accepted(request.model_copy(update={"conversation_id": new_id("c")}))


@pytest.mark.parametrize("seed", range(4))
async def test_runner_killed_while_commands_start_leaves_no_process(
    runners: Runners, runners_nats: SecuredNats, seed: int
) -> None:
    """The calls are admitted within 20 ms, so one kill interrupts each at a different moment of its start."""
    moments = random.Random(seed)
    runner = runners.start(BANKSMAN_TOOL_RUNNER__LIMITS__SANDBOX__MAX_CONCURRENT_CALLS=str(CALLS))
    spawner = os.pidfd_open(runner.spawner)
    script = f"sleep 7851.{seed}"
    async with owning(runners_nats, runner) as owner:
        async with asyncio.TaskGroup() as calls:
            for _ in range(CALLS):
                calls.create_task(start_one(owner, moments.uniform(0, SPREAD_S), script))
        await scripted_delay(moments.uniform(0, SPREAD_S))
        runner.signal(signal.SIGKILL)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await wait_exit(spawner)
        os.close(spawner)
        assert not running(script) and not running(f"7851.{seed}")
        await runner.ended()


def test_start_deletes_temporary_files_of_interrupted_writes(runners: Runners) -> None:
    runner = runners.start()
    runner.signal(signal.SIGKILL)
    runner.wait()
    left = runner.root / "acme" / "c1" / "deep" / ".banksman-0123.tmp"
    left.parent.mkdir(parents=True)
    left.write_text("half")
    left.with_name("whole.txt").write_text("whole")
    runner.start()
    assert [path.name for path in left.parent.iterdir()] == ["whole.txt"]
