"""A run removes what a killed run left on the machine, even if the reaper of that run was killed too."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.chaos.network import PREFIX, possible
from tests.support.paths import ROOT
from tests.support.polling import wait_until
from tests.support.privileged import require
from tests.support.system import descendants
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.support.volumes import require_volumes

RUN = [sys.executable, "-m", "tests.project.supervised_run"]


def test_next_run_executes_the_cleanup_commands_of_a_killed_run(tmp_path: Path) -> None:
    with killed_run(tmp_path, "file", str(tmp_path)):
        assert not (tmp_path / "cleaned").exists()

    next_run(tmp_path)

    assert (tmp_path / "cleaned").exists()
    assert list(tmp_path.glob("banksman-test-*")) == []


def test_run_leaves_the_cleanup_commands_of_a_running_run_alone(tmp_path: Path) -> None:
    with running(tmp_path, "file", str(tmp_path)):
        next_run(tmp_path)

        assert not (tmp_path / "cleaned").exists()


def test_next_run_removes_the_networks_of_a_killed_run(tmp_path: Path) -> None:
    require("network namespaces, as root", possible(), "networks whose links are cut")
    number = random.SystemRandom().randrange(2, 100)
    with killed_run(tmp_path, "network", str(number)):
        before = networks(number)

    next_run(tmp_path)

    assert (len(before), networks(number)) == (4, []), before


def test_next_run_removes_the_mounts_of_a_killed_run(tmp_path: Path) -> None:
    require_volumes()
    with killed_run(tmp_path, "volume", str(tmp_path)):
        before = mounts(tmp_path)

    next_run(tmp_path)

    assert (len(before), mounts(tmp_path)) == (2, []), before


def networks(number: int) -> list[str]:
    """Return the lines of the machine's network configuration with a namespace, link, address or rule."""
    commands = (["ip", "netns", "list"], ["ip", "-4", "-o", "addr"], ["iptables", "-w", "-S"])
    found = "".join(subprocess.run(command, capture_output=True, text=True).stdout for command in commands)
    named = (f"{PREFIX}{number}-1", f"10.{number}.0.1/32")
    return [line for line in found.splitlines() if any(name in line for name in named)]


def mounts(directory: Path) -> list[str]:
    """Return the mounts and the files of loop devices below a directory."""
    mounted = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(directory) in line]
    files = [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    return [*mounted, *(file for file in files if str(directory) in file)]


def next_run(directory: Path) -> None:
    """Start a run, and wait until it has ended."""
    subprocess.run(RUN, cwd=ROOT, env=environment(directory), check=True, timeout=WAIT_TIMEOUT_S)


@contextmanager
def killed_run(directory: Path, *arguments: str) -> Iterator[None]:
    """Kill a run with its reaper when it has created its resource."""
    with running(directory, *arguments) as run:
        # The reaper first: it cleans up after any other process of the run.
        (reaper,) = [pid for pid in descendants(run.pid) if b"reaper.py" in command_line(pid)]
        os.kill(reaper, signal.SIGKILL)
        run.wait(WAIT_TIMEOUT_S)
        yield


@contextmanager
def running(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A supervised run that has created its resource. Its temporary files are in `directory`."""
    with subprocess.Popen(
        [*RUN, *arguments], cwd=ROOT, env=environment(directory), stdout=subprocess.PIPE
    ) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == b"ready\n"
            yield run
        finally:
            remaining = descendants(run.pid)
            run.kill()
            # Without a reaper, the run itself ends by the kernel's signal; its end releases the lock.
            wait_until(lambda: all(not command_line(pid) for pid in remaining), WAIT_TIMEOUT_S)


def environment(directory: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(directory)}


def command_line(pid: int) -> bytes:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
