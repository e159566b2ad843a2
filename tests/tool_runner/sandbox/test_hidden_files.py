"""Files that a command deletes and retains without a name count against the quota."""

from __future__ import annotations

import pytest
from tests.tool_runner.conftest import Runner, only

from banksman.tool_runner.settings import MIB, RunnerLimits, SandboxLimits


@pytest.fixture
def limits() -> RunnerLimits:
    return RunnerLimits(sandbox=SandboxLimits(max_unlinked_bytes=20 * MIB, watchdog_interval_s=0.05))


_HIDE = """
import ctypes, os, signal, socket
libc = ctypes.CDLL(None)
held = []
def map_page(fd):  # Python's own mmap keeps a descriptor open
    libc.mmap(None, ctypes.c_size_t(4096), 3, 1, fd, ctypes.c_long(0))
def send(fd):
    held.append(socket.socketpair())
    socket.send_fds(held[-1][0], [b"x"], [fd])
for number in range(4):
    with open("hidden", "wb+") as file:
        file.write(b"x" * (10 << 20))
        file.flush()
        %s
    os.unlink("hidden")
signal.pause()
"""


async def _hide(runner: Runner, keep: str) -> object:
    await runner.call("write_file", path="hide.py", content=_HIDE % keep)
    return (await runner.bash("python3 hide.py", timeout_s=20)).value["killed_reason"]


async def test_small_mapping_of_a_deleted_file_counts_the_whole_file(runner: Runner) -> None:
    assert await _hide(runner, "map_page(file.fileno())") == "workspace_limit"


@only("bwrap", "the supervisor in a container may not be able to examine sockets")
@pytest.mark.parametrize(
    "keep",
    [
        pytest.param("send(file.fileno())", id="in a socket"),
        pytest.param(
            "send(file.fileno()); send(held[-1][1].fileno()); held.pop(-2)", id="in a socket in a socket"
        ),
    ],
)
async def test_deleted_files_that_are_parked_in_sockets_end_the_command(runner: Runner, keep: str) -> None:
    """No process has such a descriptor, so `/proc` shows it nowhere."""
    assert await _hide(runner, keep) == "workspace_limit"


async def test_program_that_passes_descriptors_on_is_not_ended(runner: Runner) -> None:
    program = """
import os, socket
ours, theirs = socket.socketpair()
for number in range(3):
    with open("data", "wb") as file:
        file.write(b"x" * (10 << 20))
    for again in range(2000):
        with open("data", "rb") as file:
            socket.send_fds(ours, [b"x"], [file.fileno()])
        os.close(socket.recv_fds(theirs, 1, 1)[1][0])
print("done")
"""
    await runner.call("write_file", path="pass.py", content=program)
    assert (await runner.bash("python3 pass.py")).value["stdout"] == "done\n"


async def test_shared_memory_is_no_deleted_file(runner: Runner) -> None:
    program = (
        "import mmap, time; held = mmap.mmap(-1, 40 << 20); held.write(bytes(40 << 20)); time.sleep(0.5)"
    )
    assert (await runner.bash(f"python3 -c '{program}'")).value["killed_reason"] is None
