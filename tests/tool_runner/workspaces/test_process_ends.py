"""Processes that outlive a call end with their sandbox, runner or lease, and the next result says why."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from tests.support.docker_engine import DockerEngine
from tests.support.fixtures import SecuredNats
from tests.tool_runner.service.processes import RunnerProcess, Runners, wait_for_end, wait_for_start
from tests.tool_runner.workspaces.platform import WAIT_S, Platform, platform

from banksman.bus.names import RUNNERS
from banksman.bus.storage.kv import Bucket
from banksman.contracts.calls import RunnerLease
from banksman.deployment.users import OPERATOR
from banksman.tool_runner.processes.processes import LOST

pytestmark = pytest.mark.timeout(300)
"""Seconds. Processes are started and killed, which takes long on a busy machine."""

STUBBORN = "trap '' TERM HUP INT; echo up; (setsid sleep {n}.1 &); sleep {n}.2; sleep {n}.3"


@pytest.fixture(params=["bwrap", "docker"])
def sandbox(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of a runner, once for each backend."""
    if request.param == "bwrap":
        return {}
    engine: DockerEngine = request.getfixturevalue("docker_engine")
    return {
        "DOCKER_HOST": engine.host,
        "BANKSMAN_TOOL_RUNNER__SANDBOX": "docker",
        "BANKSMAN_TOOL_RUNNER__DOCKER__IMAGE": request.getfixturevalue("base_image"),
    }


async def lasting(here: Platform, number: int) -> tuple[str, ...]:
    """Start a process in the background and a session, each with children; return what the children sleep."""
    command = STUBBORN.format(n=number)
    _, started = await here.call("c1", "bash", command=command, background=True)
    process = started.content["process"]
    _, output = await here.call("c1", "process_output", process=process, offset=0, wait_s=30)
    assert output.content["output"] == "up\n"
    await here.call("c1", "bash", command=f"(setsid sleep {number}.4 &); sleep {number}.5 &", session="s")
    code = f"import subprocess; child = subprocess.Popen(['setsid', 'sleep', '{number}.6'])"
    await here.call("c1", "bash", command=code, session="p", language="python")
    words = tuple(f"{number}.{last}" for last in (1, 2, 4, 5, 6))
    for word in words:
        await wait_for_start(word)
    return words


async def ended(words: tuple[str, ...]) -> None:
    for word in words:
        await wait_for_end(word, within_s=WAIT_S)


async def notices(here: Platform) -> list[str]:
    """Return the notices of the next call, and wait until it is recorded that the model has them."""
    _, result = await here.call("c1", "bash", command="echo")
    await here.recorded("c1", lambda record: not record.processes)
    return str(result.content["notice"]).splitlines()


async def test_an_idle_sandbox_ends_and_the_next_result_says_why(
    secured: SecuredNats, runners: Runners, sandbox: dict[str, Any]
) -> None:
    runner = runners.start(BANKSMAN_TOOL_RUNNER__PROCESSES__IDLE_S="3", **sandbox)
    async with platform(secured) as here:
        await here.sees(runner)
        await ended(await lasting(here, 7861))
        found = await notices(here)
        assert len(found) == 3
        assert all("had no call for 3 s" in notice for notice in found)
        assert "trap" in found[0] and "session s" in found[1] and "session p" in found[2]


async def test_overlapping_calls_bring_each_notice_once(secured: SecuredNats, runners: Runners) -> None:
    """A call that begins before the process ends does not withdraw or repeat the notice of another one."""
    runner = runners.start()
    async with platform(secured) as here:
        await here.sees(runner)
        await here.call(
            "c1", "bash", command="echo waiting; until [ -e go ]; do sleep 0.05; done", background=True
        )
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(here.call("c1", "bash", command="touch go; sleep 1"))
            calls = [ending, *(group.create_task(here.call("c1", "list_files")) for _ in range(4))]
        results = [call.result()[1].content for call in calls]
        found = [str(content["notice"]) for content in results if "notice" in content]
        if not found:
            found = await notices(here)
        assert [notice.count("has ended with exit code 0") for notice in found] == [1]
        await here.recorded("c1", lambda record: not record.processes)
        _, later = await here.call("c1", "bash", command="echo")
        assert "notice" not in later.content


async def again(here: Platform, runner: RunnerProcess) -> list[str]:
    """Start the runner again, and return the notices of its first call."""
    await runner.ended()
    await asyncio.to_thread(runner.start)
    await here.sees(runner)
    return await notices(here)


async def test_a_killed_runner_leaves_no_process_and_the_next_one_says_what_is_lost(
    secured: SecuredNats, runners: Runners, sandbox: dict[str, Any]
) -> None:
    runner = runners.start(**sandbox)
    async with platform(secured) as here:
        await here.sees(runner)
        words = await lasting(here, 7862)
        runner.signal(signal.SIGKILL)
        await ended(words)
        found = await again(here, runner)
        assert len(found) == 3 and all(LOST in notice for notice in found)


async def test_a_runner_that_loses_its_lease_ends_all_processes(
    secured: SecuredNats, runners: Runners, sandbox: dict[str, Any]
) -> None:
    runner = runners.start(**sandbox)
    async with platform(secured) as here, await secured.connect(OPERATOR) as operator:
        await here.sees(runner)
        words = await lasting(here, 7863)
        assert await Bucket(operator, RUNNERS, RunnerLease).delete(runner.id)
        await ended(words)
        found = await again(here, runner)
        assert len(found) == 3 and all(LOST in notice for notice in found)


async def test_a_runner_that_thaws_without_its_lease_ends_all_processes(
    secured: SecuredNats, runners: Runners, sandbox: dict[str, Any]
) -> None:
    """Another runner may then have the workspace, so nothing may still write to it."""
    runner = runners.start(**sandbox)
    async with platform(secured) as here:
        await here.sees(runner)
        words = await lasting(here, 7864)
        runner.signal(signal.SIGSTOP)
        await here.sees()
        runner.signal(signal.SIGCONT)
        await ended(words)
        found = await again(here, runner)
        assert len(found) == 3 and all(LOST in notice for notice in found)


async def test_a_stopped_runner_ends_all_processes(
    secured: SecuredNats, runners: Runners, sandbox: dict[str, Any]
) -> None:
    runner = runners.start(**sandbox)
    async with platform(secured) as here:
        await here.sees(runner)
        words = await lasting(here, 7865)
        runner.signal(signal.SIGTERM)
        assert await runner.ended() == 0
        await ended(words)


async def test_a_takeover_says_which_processes_are_lost(secured: SecuredNats, runners: Runners) -> None:
    first = runners.start()
    async with platform(secured, wait_s=0.5) as here:
        await here.sees(first)
        words = await lasting(here, 7866)
        other = await asyncio.to_thread(runners.start)
        await here.sees(first, other)
        first.signal(signal.SIGKILL)
        await first.ended()
        await here.sees(other)
        await ended(words)
        found = await notices(here)
        assert (await here.record("c1")).runner == other.id
        assert len(found) == 3 and all(LOST in notice for notice in found)
