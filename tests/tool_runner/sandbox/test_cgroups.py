"""A cgroup for each command, with the kernel's cgroup v2, on machines that delegate one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import privileged
from tests.tool_runner.conftest import Runner, exists, only

from banksman.tool_runner.limits import SandboxLimits
from banksman.tool_runner.sandbox.base import SandboxCommand, Stop
from banksman.tool_runner.sandbox.bwrap import BwrapSandbox
from banksman.tool_runner.sandbox.cgroups import NEEDED, CallCgroups, NotDelegated, delegated, examine

pytestmark = only("bwrap", "containers have cgroups of their engine")

NOTHING: frozenset[str] = frozenset()


def divided(root: Path, needed: frozenset[str] = NOTHING) -> CallCgroups:
    """Divide this process's own cgroup; skip the test if the machine does not delegate it."""
    try:
        return delegated(root, needed=needed)
    except NotDelegated as reason:
        # The controllers may be bound to cgroup v1, which a test cannot change under other processes.
        pytest.skip(f"{privileged.MARK}, needs a delegated cgroup v2: {reason}")


@pytest.fixture
def cgroups(root: Path, runner: Runner) -> Iterator[CallCgroups]:
    made = divided(root)
    yield made
    removed(made)


def removed(made: CallCgroups) -> None:
    with contextlib.suppress(OSError):
        made.directory.rmdir()


def sandbox_with(cgroups: CallCgroups, runner: Runner, limits: SandboxLimits | None = None) -> BwrapSandbox:
    return BwrapSandbox(runner.identity, limits or SandboxLimits(), cgroups=cgroups)


def members(cgroups: CallCgroups) -> set[int]:
    procs = [path.read_text().split() for path in cgroups.directory.glob("call-*/cgroup.procs")]
    return {int(pid) for pids in procs for pid in pids}


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
    assert list(cgroups.directory.glob("call-*")) == []
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


def test_next_runner_kills_leftovers_in_the_cgroup(runner: Runner, cgroups: CallCgroups, root: Path) -> None:
    left = cgroups.create(SandboxLimits())
    procs = left.open()
    with subprocess.Popen(["sleep", "778072"], start_new_session=True) as process:
        os.write(procs, str(process.pid).encode())
        os.close(procs)
        divided(root)
        assert process.wait(10) == -signal.SIGKILL
    assert not left.directory.exists()


def test_cgroup_with_foreign_processes_is_not_divided(runner: Runner, root: Path) -> None:
    """A session's cgroup has processes beside the runner, which must not be moved."""
    cgroups = divided(root)
    shared = cgroups.create(SandboxLimits())
    program = """
import os, sys
from banksman.tool_runner.sandbox.cgroups import NotDelegated, examine
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
try:
    examine(needed=frozenset())
except NotDelegated as reason:
    print(reason)
"""
    with subprocess.Popen(["sleep", "778073"], start_new_session=True) as stranger:
        (shared.directory / "cgroup.procs").write_text(str(stranger.pid))
        ended = subprocess.run(
            [sys.executable, "-c", program, str(shared.directory)],
            capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
        shared.end()
    removed(cgroups)
    assert "has processes that do not belong to the runner" in ended.stdout


def test_a_runner_moves_itself_out_of_the_cgroup_that_it_divides(runner: Runner, root: Path) -> None:
    cgroups = divided(root)
    own = cgroups.create(SandboxLimits())
    program = """
import sys
from pathlib import Path
from banksman.tool_runner.sandbox.cgroups import delegated
from banksman.tool_runner.limits import SandboxLimits
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
for _ in range(2):
    made = delegated(Path(sys.argv[2]), needed=frozenset())
    call = made.create(SandboxLimits())
    print(open("/proc/self/cgroup").read().splitlines()[-1].rpartition("/")[2], call.directory.parent.parent)
    call.end()
made.directory.rmdir()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(own.directory), str(root)],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    (own.directory / "banksman-runner").rmdir()
    own.end()
    removed(cgroups)
    assert ended.stdout == f"banksman-runner {own.directory}\n" * 2


def test_a_missing_controller_is_named(runner: Runner) -> None:
    with pytest.raises(NotDelegated, match=r"no controller nonesuch|no cgroup v2"):
        examine(needed=frozenset({"nonesuch"}))


async def test_memory_and_processes_of_a_whole_call_are_limited_by_the_kernel(
    runner: Runner, root: Path
) -> None:
    """Each process stays within its rlimits; the cgroup limits the sum of their memory."""
    cgroups = divided(root, NEEDED)
    limits = SandboxLimits(memory_bytes=128 * 1024 * 1024, max_processes=20, watchdog_interval_s=10)
    sandbox = sandbox_with(cgroups, runner, limits)
    hog = "python3 -c 'x = bytearray(60 << 20); import signal; signal.pause()'"
    hogs = await sandbox.run(
        SandboxCommand(
            f"{hog} & {hog} & {hog} & {hog} & wait -n; jobs -r | wc -l", runner.workspace.directory, 30
        )
    )
    bomb = await sandbox.run(
        SandboxCommand("for i in {1..60}; do sleep 5 & done; wait", runner.workspace.directory, 30)
    )
    errors = bomb.output.shown().stderr
    sandbox.close()
    for outcome in (hogs, bomb):
        outcome.output.close()
    removed(cgroups)
    assert hogs.exit_code is not None
    assert "fork" in errors
