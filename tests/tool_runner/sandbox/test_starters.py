"""One process starts one sandbox after another, and nothing of a command reaches the next one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.polling import eventually
from tests.tool_runner.conftest import Runner, exists, only

from banksman.tool_runner.sandbox.base import SandboxCommand
from banksman.tool_runner.sandbox.bwrap import processes
from banksman.tool_runner.sandbox.bwrap.cgroups import NotDelegated, divided, examine
from banksman.tool_runner.sandbox.bwrap.sandbox import BwrapSandbox, Starters, find_bwrap
from banksman.tool_runner.sandbox.bwrap.spawner import Spawner
from banksman.tool_runner.sandbox.bwrap.spawner_process import STARTER_NAME
from banksman.tool_runner.sandbox.seccomp import command_filter
from banksman.tool_runner.settings import SandboxLimits

pytestmark = only("bwrap", "a container has a supervisor of its own")


def starters() -> set[int]:
    """Return the starters of this process: before exec, a child of a starter has its name too."""
    spawners = processes.children(os.getpid())
    return {pid for spawner in spawners for pid in processes.children(spawner) if _name(pid) == STARTER_NAME}


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@contextlib.contextmanager
def sandbox_in_cgroups(runner: Runner, root: Path) -> Iterator[BwrapSandbox]:
    """Yield a sandbox with a cgroup for each starter; skip the test if the machine does not delegate any."""
    try:
        cgroups = divided(examine(), root)
    except NotDelegated as reason:
        pytest.skip(f"needs a delegated cgroup: {reason}")
    limits = SandboxLimits(memory_bytes=128 << 20, data_bytes=1 << 30, max_unlinked_bytes=1 << 30)
    sandbox = BwrapSandbox(runner.identity, limits, cgroups=cgroups)
    yield sandbox
    sandbox.close()


async def stdout(sandbox: BwrapSandbox, runner: Runner, script: str) -> str:
    outcome = await sandbox.run(SandboxCommand(script, runner.workspace.directory, 30))
    try:
        return outcome.output.shown().stdout
    finally:
        outcome.output.close()


def open_namespaces(pid: int) -> contextlib.ExitStack:
    """Open the namespaces of a process and its descendants: the kernel reuses the numbers of ended ones."""
    opened = contextlib.ExitStack()
    for kind in (kind for one in processes.descendants(pid) for kind in Path(f"/proc/{one}/ns").iterdir()):
        with contextlib.suppress(FileNotFoundError):
            opened.callback(os.close, os.open(kind, os.O_RDONLY))
    return opened


async def test_commands_one_after_another_have_one_starter_and_separate_namespaces(runner: Runner) -> None:
    script = (
        "for kind in ipc mnt net pid user uts; do readlink /proc/self/ns/$kind; done; echo left >/tmp/left"
    )
    waits = f"{script}; ls /tmp; touch waits; until [[ -e go_on ]]; do sleep 0.01; done"
    async with asyncio.TaskGroup() as group:
        command = group.create_task(runner.bash(waits))
        await eventually(lambda: exists(f"{runner.workspace.directory}/waits"))
        (used,) = starters()
        namespaces = open_namespaces(used)
        os.close(os.open(f"{runner.workspace.directory}/go_on", os.O_CREAT))
    with namespaces:
        second = (await runner.bash(f"ls /tmp; {script}")).value["stdout"]
    first = command.result().value["stdout"]
    assert starters() == {used}
    assert isinstance(first, str)
    assert isinstance(second, str)
    assert first.endswith("left\n")
    assert second.startswith("ipc:")
    assert set(first.splitlines()).isdisjoint(second.splitlines())


async def test_concurrent_commands_have_a_starter_each(runner: Runner) -> None:
    """Both commands wait for the other one's file, so they run at the same time."""
    meet = "touch {own}; until [[ -e {other} ]]; do sleep 0.01; done; rm {other}"
    directory = runner.workspace.directory
    await runner.bash("true")
    async with asyncio.TaskGroup() as group:
        for own, other in (("a", "b"), ("b", "a")):
            command = SandboxCommand(meet.format(own=own, other=other), directory, 30)
            group.create_task(_exit_code_0(runner, command))
    assert len(starters()) == 2


async def _exit_code_0(runner: Runner, command: SandboxCommand) -> None:
    outcome = await runner.sandbox.run(command)
    outcome.output.close()
    assert outcome.exit_code == 0


async def test_killed_starter_ends_its_command_and_the_next_one_runs(runner: Runner) -> None:
    async with asyncio.TaskGroup() as group:
        call = group.create_task(runner.bash("sleep 778201"))
        (starter,) = await eventually(starters, interval_s=0.005)
        await eventually(lambda: len(list(processes.descendants(starter))) >= 4, interval_s=0.005)
        tree = list(processes.descendants(starter))
        os.kill(starter, signal.SIGKILL)
    assert call.result().error_kind == "unavailable"
    assert not any(exists(f"/proc/{pid}") for pid in tree)
    assert (await runner.bash("echo again")).value["stdout"] == "again\n"


async def test_orphan_that_is_left_after_the_last_starter_is_killed(runner: Runner, tmp_path: Path) -> None:
    """A spawner that is killed takes its starters with it, so an orphan may exist without a starter."""
    program = tmp_path / "bwrap"
    shutil.copy("/usr/bin/sleep", program)
    sweep = asyncio.create_task(runner.sandbox.sweep())
    call = asyncio.create_task(runner.bash("sleep 778202"))
    (starter,) = await eventually(starters, interval_s=0.005)
    os.kill(starter, signal.SIGKILL)
    await call
    orphan = subprocess.Popen([program, "600"])  # noqa: ASYNC220 - the runner starts its processes so
    try:
        await eventually(lambda: not exists(f"/proc/{orphan.pid}"))
        assert starters() == set()
    finally:
        sweep.cancel()
        orphan.kill()
        orphan.wait()


async def test_starter_that_was_killed_while_unused_is_replaced(runner: Runner) -> None:
    await runner.bash("true")
    (starter,) = starters()
    os.kill(starter, signal.SIGKILL)
    await eventually(lambda: not starters(), interval_s=0.005)
    assert (await runner.bash("echo again")).value["stdout"] == "again\n"


async def test_unused_starter_ends(runner: Runner) -> None:
    spawner = Spawner(runner.identity, find_bwrap(), command_filter(), calls=2)
    unused = Starters(spawner, SandboxLimits(), None, unused_s=0)
    async with unused.lend() as place:
        await eventually(lambda: place.starter.idle)
    await eventually(starters, interval_s=0.005)
    await unused.end_unused()
    await eventually(lambda: not starters(), interval_s=0.005)
    unused.close()


async def test_cgroup_is_used_again_unless_a_command_left_memory_in_it(runner: Runner, root: Path) -> None:
    """Cached pages of a large file are charged to the cgroup until it ends."""
    with sandbox_in_cgroups(runner, root) as sandbox:
        await stdout(sandbox, runner, "true")
        first = starters()
        await stdout(sandbox, runner, "true")
        second = starters()
        await stdout(sandbox, runner, "head -c 32M /dev/zero >large")
        await eventually(lambda: starters() != second)
        assert await stdout(sandbox, runner, "echo again") == "again\n"
    assert len(first) == 1
    assert second == first
    assert starters() == set()


async def test_command_after_one_that_exceeded_its_memory_is_not_blamed(runner: Runner, root: Path) -> None:
    with sandbox_in_cgroups(runner, root) as sandbox:
        hog = SandboxCommand("python3 -c 'bytearray(200 << 20)'", runner.workspace.directory, 30)
        outcome = await sandbox.run(hog)
        outcome.output.close()
        again = await stdout(sandbox, runner, "echo again")
    assert outcome.killed_reason == "memory_limit"
    assert again == "again\n"
