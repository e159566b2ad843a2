"""A cgroup for each command, on machines that delegate one: of version 2, or of version 1."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support import privileged
from tests.support.polling import wait_until
from tests.tool_runner.conftest import Runner, exists, only
from tests.tool_runner.sandbox.hidden_memory import HIDDEN_MEMORY

from banksman.tool_runner.sandbox.base import SandboxCommand, Stop
from banksman.tool_runner.sandbox.bwrap.cgroups import (
    CallCgroups,
    NotDelegated,
    divided,
    examine_v1,
    examine_v2,
)
from banksman.tool_runner.sandbox.bwrap.sandbox import BwrapSandbox
from banksman.tool_runner.settings import SandboxLimits

pytestmark = only("bwrap", "containers have cgroups of their engine")

NOTHING: frozenset[str] = frozenset()


DELEGATIONS = {
    "v1": examine_v1,
    "v2": examine_v2,
    "v2 without controllers": lambda: examine_v2(NOTHING),
}
limiting = pytest.mark.parametrize("cgroups", ["v1", "v2"], indirect=True)
"""Restricts a test to cgroups with controllers."""


def own_v2(root: Path) -> CallCgroups:
    """Divide this process's own cgroup v2, with or without controllers."""
    return divided_or_skipped("v2 without controllers", root)


def divided_or_skipped(delegation: str, root: Path) -> CallCgroups:
    """Divide this process's own cgroup; skip the test if the machine does not delegate it."""
    try:
        return divided(DELEGATIONS[delegation](), root)
    except NotDelegated as reason:
        # A controller is bound to one version, which a test cannot change under other processes.
        pytest.skip(f"{privileged.MARK}, needs a delegated cgroup {delegation}: {reason}")


@pytest.fixture(params=DELEGATIONS)
def cgroups(root: Path, runner: Runner, request: pytest.FixtureRequest) -> Iterator[CallCgroups]:
    made = divided_or_skipped(request.param, root)
    yield made
    removed(made)


def removed(made: CallCgroups) -> None:
    made.close()


def sandbox_with(cgroups: CallCgroups, runner: Runner, limits: SandboxLimits | None = None) -> BwrapSandbox:
    return BwrapSandbox(runner.identity, limits or SandboxLimits(), cgroups=cgroups)


def members(cgroups: CallCgroups) -> set[int]:
    procs = [path.read_text().split() for path in calls(cgroups, "cgroup.procs")]
    return {int(pid) for pids in procs for pid in pids}


def calls(cgroups: CallCgroups, name: str = "") -> list[Path]:
    return [path for each in cgroups.hierarchies for path in each.directory.glob(f"call-*/{name}")]


async def test_cgroup_contains_all_processes_of_its_command_and_ends_with_it(
    runner: Runner, cgroups: CallCgroups
) -> None:
    sandbox = sandbox_with(cgroups, runner)
    ready = asyncio.Event()
    script = "(setsid sleep 778071 &); setsid sleep 778071 & echo ready; sleep 778071"
    command = SandboxCommand(script, runner.workspace.directory, 30)
    stop = Stop()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sandbox.run(command, on_output=lambda *_: ready.set(), stop=stop))
        async with asyncio.timeout(20):
            await ready.wait()
        inside = members(cgroups)
        stop.request("cancelled")
    outcome = running.result()
    sandbox.close()
    outcome.output.close()
    # The outer bwrap, the first process of the namespace, bash and three sleeping processes.
    assert len(inside) >= 5
    assert calls(cgroups) == []
    assert not any(exists(f"/proc/{pid}") for pid in inside)


async def test_commands_behave_the_same_in_a_cgroup(runner: Runner, cgroups: CallCgroups) -> None:
    sandbox = sandbox_with(cgroups, runner)
    outcomes = [
        await sandbox.run(SandboxCommand(script, runner.workspace.directory, timeout_s))
        for script, timeout_s in (("echo hi; exit 3", 20), ("sleep 60", 0.3), ("kill -9 $$", 20))
    ]
    sandbox.close()
    seen = [(outcome.exit_code, outcome.killed_reason) for outcome in outcomes]
    for outcome in outcomes:
        outcome.output.close()
    assert seen == [(3, None), (None, "timeout"), (137, None)]


def test_next_runner_kills_leftovers_in_the_cgroup(
    cgroups: CallCgroups, root: Path, request: pytest.FixtureRequest
) -> None:
    delegation = request.node.callspec.params["cgroups"]
    left = cgroups.create(SandboxLimits())
    with subprocess.Popen(["sleep", "778072"], start_new_session=True) as process:
        for procs in left.open():
            os.write(procs, str(process.pid).encode())
            os.close(procs)
        divided_or_skipped(delegation, root)
        assert process.wait(10) == -signal.SIGKILL
    assert calls(cgroups) == []


def test_next_runner_removes_the_cgroups_of_runners_that_were_killed(runner: Runner, root: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from banksman.tool_runner.settings import SandboxLimits
from banksman.tool_runner.sandbox.bwrap.cgroups import examine_v2
from banksman.tool_runner.sandbox.bwrap.cgroups import divided
made = divided(examine_v2(frozenset()), Path(sys.argv[1]))
made.create(SandboxLimits())
print(made.hierarchies[0].directory, flush=True)
signal.pause()
"""
    living = own_v2(root / "living")
    command = [sys.executable, "-c", program, str(root / "killed")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        directory = Path(other.stdout.readline().strip())
        removed(own_v2(root / "next"))
        while_it_lived = directory.exists()
        other.kill()
    removed(own_v2(root / "next"))
    assert (while_it_lived, directory.exists()) == (True, False)
    assert living.hierarchies[0].directory.exists()
    removed(living)


def test_directory_that_another_runner_removes_before_it_is_locked_is_created_again(
    runner: Runner, root: Path
) -> None:
    """Two runners that start at once: each removes directories of calls without a lock."""
    first = own_v2(root)
    directory = first.hierarchies[0].directory
    removed(first)
    directory.mkdir()
    lock = os.open(directory, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    inode = os.fstat(lock).st_ino
    with ThreadPoolExecutor(1) as thread:
        second = thread.submit(divided, DELEGATIONS["v2 without controllers"](), root)
        wait_until(lambda: re.search(rf"->.*:{inode} ", Path("/proc/locks").read_text()))
        directory.rmdir()
        os.close(lock)
        made = second.result(10)
    made.create(SandboxLimits()).end()
    removed(made)


def test_cgroup_with_foreign_processes_is_not_divided(runner: Runner, root: Path) -> None:
    """A session's cgroup has processes beside the runner, which must not be moved."""
    cgroups = own_v2(root)
    shared = cgroups.create(SandboxLimits())
    (directory,) = shared.directories
    program = """
import os, sys
from banksman.tool_runner.sandbox.bwrap.cgroups import NotDelegated, examine_v2
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
try:
    examine_v2(frozenset())
except NotDelegated as reason:
    print(reason)
"""
    with subprocess.Popen(["sleep", "778073"], start_new_session=True) as stranger:
        (directory / "cgroup.procs").write_text(str(stranger.pid))
        ended = subprocess.run(
            [sys.executable, "-c", program, str(directory)],
            capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
        shared.end()
    removed(cgroups)
    assert "has processes that do not belong to the runner" in ended.stdout


def test_a_runner_moves_itself_out_of_the_cgroup_that_it_divides(runner: Runner, root: Path) -> None:
    cgroups = own_v2(root)
    own = cgroups.create(SandboxLimits())
    (directory,) = own.directories
    program = """
import sys
from pathlib import Path
from banksman.tool_runner.sandbox.bwrap.cgroups import examine_v2
from banksman.tool_runner.sandbox.bwrap.cgroups import divided
from banksman.tool_runner.settings import SandboxLimits
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
for _ in range(2):
    made = divided(examine_v2(frozenset()), Path(sys.argv[2]))
    call = made.create(SandboxLimits())
    own = open("/proc/self/cgroup").read().splitlines()[-1].rpartition("/")[2]
    print(own, call.directories[0].parent.parent)
    call.end()
made.hierarchies[0].directory.rmdir()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(directory), str(root)],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    (directory / "banksman-runner").rmdir()
    own.end()
    removed(cgroups)
    assert ended.stdout == f"banksman-runner {directory}\n" * 2


def test_a_missing_controller_is_named(runner: Runner) -> None:
    with pytest.raises(NotDelegated, match=r"no controller nonesuch|no cgroup v2"):
        examine_v2(frozenset({"nonesuch"}))


def python(program: str) -> str:
    return f"exec python3 -c '{program}'"


LIMITS = SandboxLimits(
    memory_bytes=128 * 1024 * 1024,
    max_unlinked_bytes=4 * 1024 * 1024 * 1024,
    max_processes=20,
    watchdog_interval_s=0.05,
)
HOG = "python3 -c 'x = bytearray(60 << 20); import signal; signal.pause()'"


@limiting
async def test_processes_of_a_whole_call_are_limited_by_the_kernel(
    runner: Runner, cgroups: CallCgroups
) -> None:
    sandbox = sandbox_with(cgroups, runner, LIMITS)
    bomb = await sandbox.run(
        SandboxCommand("for i in {1..60}; do sleep 5 & done; wait", runner.workspace.directory, 30)
    )
    errors = bomb.output.shown().stderr
    sandbox.close()
    bomb.output.close()
    assert "fork" in errors


@limiting
@pytest.mark.parametrize(
    "program",
    [f"{HOG} & {HOG} & {HOG} & {HOG} & wait", *map(python, HIDDEN_MEMORY.values())],
    ids=["many processes", *HIDDEN_MEMORY],
)
async def test_memory_of_a_whole_call_is_limited_by_the_kernel(
    runner: Runner, cgroups: CallCgroups, program: str
) -> None:
    """Each process stays within its rlimits; the cgroup limits the sum, also of the kernel's own memory."""
    sandbox = sandbox_with(cgroups, runner, LIMITS)
    outcome = await sandbox.run(SandboxCommand(program, runner.workspace.directory, 30))
    sandbox.close()
    outcome.output.close()
    assert outcome.killed_reason == "memory_limit"
    assert calls(cgroups) == []
