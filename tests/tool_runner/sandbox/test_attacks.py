"""Attacks in addition to the numbered cases. `docs/security.md` lists the outcome of each."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import stat
from pathlib import Path

import pytest
from tests.tool_runner.conftest import Runner, exists, only, started
from tests.tool_runner.sandbox.hidden_memory import HIDDEN_MEMORY

from banksman.contracts.wire import JsonValue
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.settings import MIB, RunnerLimits, SandboxLimits
from banksman.tool_runner.tools.toolbox import ToolOutcome

PROBES = {
    "control": """
        attempt(lambda: open("/workspace/allowed", "w"))
    """,
    "write the kernel's settings": """
        for name in ("kernel/core_pattern", "kernel/hostname", "vm/overcommit_memory", "net/ipv4/ip_forward",
                     "user/max_user_namespaces", "fs/binfmt_misc/register"):
            attempt(lambda: open(f"/proc/sys/{name}", "wb", 0).write(b"1"))
        attempt(lambda: open("/proc/sysrq-trigger", "wb", 0).write(b"b"))
    """,
    "lower the OOM score below the runner's": """
        attempt(lambda: open("/proc/self/oom_score_adj", "wb", 0).write(b"-1000"))
        attempt(lambda: open("/proc/self/oom_score_adj", "wb", 0).write(b"-1"))
    """,
    "map user ids": """
        for name in ("uid_map", "gid_map", "setgroups"):
            attempt(lambda: open(f"/proc/self/{name}", "wb", 0).write(b"0 0 1"))
    """,
    "unshare anything": """
        for flag in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
            attempt(lambda: call("unshare", flag))
    """,
    "clone into a namespace": """
        for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
            attempt(lambda: syscall(56, flag | 17, 0, 0, 0, 0))
        attempt(lambda: syscall(435, 0, 88))
    """,
    "use the key rings of the user": """
        attempt(lambda: syscall(248, b"user", b"banksman", b"x", 1, -3))
        attempt(lambda: syscall(249, b"user", b"banksman", 0, -3))
        attempt(lambda: syscall(250, 0, -3, 1))
    """,
    "hide memory where no process has it": """
        attempt(lambda: os.memfd_create("hidden"))
        attempt(lambda: syscall(447, 0))
        attempt(lambda: call("shmget", 0, 1 << 20, 0o1600))
        attempt(lambda: call("msgget", 0, 0o1600))
        attempt(lambda: call("semget", 0, 32000, 0o1600))
    """,
    "type into a terminal": """
        attempt(lambda: open("/dev/tty"))
        attempt(lambda: fcntl.ioctl(pty.openpty()[1], 0x5412, b"x"))
    """,
    "make devices": """
        for kind in (stat.S_IFCHR, stat.S_IFBLK):
            attempt(lambda: os.mknod("device", kind | 0o600, os.makedev(1, 1)))
        for name in ("mem", "kmsg", "port", "fuse", "kvm", "net/tun", "loop-control", "vda", "sda"):
            attempt(lambda: open(f"/dev/{name}", "rb"))
    """,
    "raise limits and priorities": """
        for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE,
                      resource.RLIMIT_CORE, resource.RLIMIT_DATA, resource.RLIMIT_CPU):
            soft, hard = resource.getrlimit(limit)
            # Docker limits processes by a cgroup and not here, and one more than infinity is 0.
            if hard == resource.RLIM_INFINITY:
                continue
            attempt(lambda: resource.setrlimit(limit, (hard + 1, hard + 1)))
        attempt(lambda: os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1))
        attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
    """,
    "become another user": """
        for change in (os.setuid, os.setgid, os.seteuid):
            attempt(lambda: change(0))
        attempt(lambda: os.setgroups([0]))
        attempt(lambda: os.chown(".", 0, 0))
    """,
    "open odd sockets": """
        for family in (16, 17, 21, 29, 30, 31, 38, 40, 44):
            for kind in (1, 2, 3, 5):
                attempt(lambda: socket.socket(family, kind))
        attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
    """,
    "link to what is outside": """
        for path in ("/usr/bin/env", "/proc/self/environ", "/dev/null"):
            attempt(lambda: os.link(path, "hard"))
    """,
    "write beside the workspace": """
        for path in ("/usr/x", "/etc/x", "/x", "/dev/x", "/workspace/../x", "/proc/1/root" "/x",
                     "/proc/self/cwd/../x"):
            attempt(lambda: open(path, "w"))
    """,
    "see the host": """
        for path in ("/home/..//workspaces", "/run/docker.sock", "/var/run/docker.sock", "/etc/shadow"):
            attempt(lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1))
    """,
}
"""Attempts of hostile code in the sandbox. Each must fail, except the first, which must succeed."""

HARNESS = """
import ctypes, fcntl, json, os, pty, resource, socket, stat
libc = ctypes.CDLL(None, use_errno=True)
succeeded = {}
def attempt(what):
    try:
        what()
    except (OSError, ValueError):
        return
    succeeded.setdefault(probe, []).append(what.__code__.co_firstlineno)
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
def call(name, *arguments):
    return checked(getattr(libc, name)(*arguments))
def syscall(number, *arguments):
    return checked(libc.syscall(number, *arguments))
"""


async def bash(runner: Runner, script: str, *, timeout_s: float = 30) -> ToolOutcome:
    return await runner.bash(script, timeout_s=timeout_s)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the probes call by the numbers of x86-64")
async def test_no_attack_from_inside_the_sandbox_succeeds(runner: Runner) -> None:
    parts = [HARNESS]
    parts += [f"probe = {name!r}\n{inspect.cleandoc(body)}\n" for name, body in PROBES.items()]
    await runner.call(
        "write_file", path="attack.py", content="\n".join([*parts, "print(json.dumps(succeeded))"])
    )
    outcome = await bash(runner, "python3 attack.py")
    assert outcome.value["stderr"] == ""
    assert set(json.loads(str(outcome.value["stdout"]))) == {"control"}


@only("bwrap", "its network is the runner's neighbour")
async def test_abstract_sockets_of_the_host_are_not_reachable(runner: Runner) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        name = f"banksman-{os.getpid()}"
        server.bind(f"\0{name}")
        server.listen()
        program = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        outcome = await bash(runner, f'python3 -c "{program}"')
    assert "ConnectionRefusedError" in str(outcome.value["stderr"])


PLANTED = (".bashrc", ".bash_profile", ".bash_login", ".profile", ".inputrc", ".bash_logout", "BASH_ENV")


async def test_start_up_files_in_a_workspace_are_not_executed(runner: Runner) -> None:
    plant = "; ".join(f"echo 'echo PLANTED' | tee {name} /home/{name} >/dev/null" for name in PLANTED)
    await bash(runner, f"{plant}; cp .bashrc ls; chmod +x ls; cp .bashrc prlimit; chmod +x prlimit")
    later = await bash(runner, "ls >/dev/null; bash -c 'echo fine'")
    assert (later.value["stdout"], later.value["stderr"]) == ("fine\n", "")


async def test_kill_of_all_reachable_processes_affects_only_the_call(runner: Runner) -> None:
    await bash(runner, "sleep 50 & sleep 50 & kill -STOP -1; kill -9 -1; kill -9 1; kill -9 $$")
    assert (await bash(runner, "echo alive")).value["stdout"] == "alive\n"


async def test_stopped_command_ends_at_its_time_out(runner: Runner) -> None:
    outcome = await bash(runner, "kill -STOP $$ ; kill -STOP $BASHPID", timeout_s=0.5)
    assert outcome.error_kind == "timeout"


async def test_zombies_are_limited_and_all_are_reaped(runner: Runner) -> None:
    program = "import os\nfor n in range(10000):\n    os.fork() or os._exit(0)"
    outcome = await bash(runner, f'python3 -c "{program}"')
    assert "BlockingIOError" in str(outcome.value["stderr"])
    assert (await bash(runner, "echo alive")).value["stdout"] == "alive\n"


async def test_setuid_bit_grants_no_rights(runner: Runner) -> None:
    await bash(runner, "cp /bin/bash sh; chmod 6755 sh")
    outcome = await bash(
        runner, "./sh -p -c 'id -u; grep -c . /proc/self/status; grep NoNewPrivs /proc/self/status'"
    )
    assert str(outcome.value["stdout"]).splitlines()[-1].split()[-1] == "1"
    status = (runner.workspace.directory / "sh").stat()
    assert status.st_uid == runner.identity.uid != 0
    # No other user of the host can reach it.
    assert stat.S_IMODE(runner.workspace.directory.stat().st_mode) == 0o700


async def test_workspace_with_removed_permissions_is_usable_again(runner: Runner) -> None:
    await bash(runner, "echo text > kept; chmod 000 /workspace")
    assert (await runner.call("read_file", path="kept")).value["content"] == "text\n"
    assert (await bash(runner, "cat kept")).value["stdout"] == "text\n"


async def test_control_characters_in_names_and_output_stay_data(runner: Runner) -> None:
    name = "a\nb\x1b[2J\r\t‮.txt"
    await runner.call("write_file", path=name, content="x")
    outcome = await bash(
        runner, r"ls --quoting-style=literal --show-control-chars; printf '\033]0;title\007\000end'"
    )
    shown = str(outcome.value["stdout"])
    assert not {"\x1b", "\r", "\x07"} & set(shown)
    assert shown.endswith("\u202e.txt\n\0end")
    assert json.loads(json.dumps(outcome.value))["stdout"] == shown


@pytest.mark.parametrize("link", [".banksman", ".banksman/home", ".banksman/home/.gitconfig"])
async def test_the_home_directory_is_never_made_through_a_link(runner: Runner, root: Path, link: str) -> None:
    """It is in the workspace, so a command may put a link there before the next process of the runner."""
    outside = root / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    await bash(runner, f"rm -r .banksman; mkdir -p {link}; rmdir {link}; ln -s {outside} {link}")
    runner.workspace.has_home = False
    assert (await bash(runner, "echo fine")).value["stdout"] == "fine\n"
    assert list(outside.iterdir()) == []


async def test_whole_output_is_never_written_through_a_link(runner: Runner) -> None:
    """The directory of stored outputs is in the workspace, so a command may put a link there."""
    await bash(runner, "rm -r .banksman; ln -s /var/tmp .banksman")
    before = set(os.listdir("/var/tmp"))
    outcome = await bash(runner, "seq 20000")
    assert outcome.value["truncated"] is True
    assert "full_output_path" not in outcome.value
    assert {name for name in set(os.listdir("/var/tmp")) - before if name == "output"} == set()
    await bash(runner, "rm .banksman; mkdir -p .banksman; ln -s ../../.. .banksman/output")
    outcome = await bash(runner, "seq 20000")
    assert "full_output_path" not in outcome.value


class TestHidden:
    @pytest.fixture
    def limits(self) -> RunnerLimits:
        sandbox = SandboxLimits(max_unlinked_bytes=20 * MIB, watchdog_interval_s=0.05)
        return RunnerLimits(sandbox=sandbox)

    @pytest.mark.parametrize("keep", ["held.append(file)", "held.append(mmap.mmap(file.fileno(), 0))"])
    async def test_deleted_open_files_count_against_the_quota(self, runner: Runner, keep: str) -> None:
        program = f"""
import mmap, os, signal
held = []
for number in range(4):
    with open("hidden", "wb+") as file:
        file.write(b"x" * (10 << 20))
        file.flush()
        {keep.replace("file)", "os.fdopen(os.dup(file.fileno())))") if "mmap" not in keep else keep}
    os.unlink("hidden")
signal.pause()
"""
        await runner.call("write_file", path="hide.py", content=program)
        outcome = await bash(runner, "python3 hide.py")
        assert outcome.value["killed_reason"] == "workspace_limit"


@only("bwrap", "a container's /proc is writable")
async def test_command_keeps_the_highest_oom_score(runner: Runner) -> None:
    """Otherwise the OOM killer would choose the runner before the command."""
    lower = "for score in 999 0 -1; do echo $score > /proc/self/oom_score_adj; done 2> errors"
    outcome = await bash(runner, f"{lower}; grep -c 'Read-only' errors; cat /proc/self/oom_score_adj")
    assert outcome.value["stdout"] == "3\n1000\n"


class TestHiddenMemory:
    @pytest.fixture
    def limits(self) -> RunnerLimits:
        sandbox = SandboxLimits(
            memory_bytes=128 * MIB, max_unlinked_bytes=4096 * MIB, watchdog_interval_s=0.05
        )
        return RunnerLimits(sandbox=sandbox)

    @only("bwrap", "the engine's cgroup counts it")
    @pytest.mark.parametrize("program", HIDDEN_MEMORY.values(), ids=HIDDEN_MEMORY.keys())
    async def test_memory_outside_of_resident_sets_counts(self, runner: Runner, program: str) -> None:
        await runner.call("write_file", path="hide.py", content=program)
        outcome = await bash(runner, "python3 hide.py")
        assert outcome.value["killed_reason"] == "memory_limit"


@only("bwrap", "each container has a user of its engine")
async def test_one_command_cannot_take_the_inotify_instances_of_all(runner: Runner) -> None:
    """The kernel counts them by user, and all commands of a runner share one."""
    take = """
import ctypes
taken = 0
while taken < 200 and ctypes.CDLL(None).inotify_init1(0) >= 0:
    taken += 1
print(taken, flush=True)
"""
    await runner.call("write_file", path="take.py", content=f"{take}\nimport signal\nsignal.pause()")
    ready, stop = asyncio.Event(), Stop()
    arguments: dict[str, JsonValue] = {"command": "python3 take.py", "timeout_s": 60}
    async with asyncio.TaskGroup() as tasks:
        attack = tasks.create_task(
            runner.box.run("bash", runner.workspace, arguments, stop=stop, on_output=lambda *_: ready.set())
        )
        await started(ready)
        neighbour = runner.store.get("acme", "neighbour")
        other = await runner.box.run("bash", neighbour, {"command": f"python3 -c '{take}'", "timeout_s": 30})
        stop.request("cancelled")
    taken = int(str(attack.result().value["stdout"]))
    assert 0 < taken < 200
    assert int(str(other.value["stdout"])) == taken


async def test_buffers_of_sockets_cannot_be_enlarged(runner: Runner) -> None:
    """The kernel charges socket memory to no process: without a cgroup, only buffer sizes and counts limit
    it."""
    program = """
import socket
def fill(size):
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    if size:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    filled = 0
    try:
        while True:
            filled += ours.send(bytes(4096))
    except BlockingIOError:
        return filled
print(fill(1 << 30) <= fill(0))
"""
    await runner.call("write_file", path="fill.py", content=program)
    assert (await bash(runner, "python3 fill.py")).value["stdout"] == "True\n"


async def test_calls_continue_while_a_hostile_command_runs(runner: Runner) -> None:
    """A hostile call can only take its share of the processors."""
    hostile = "while :; do :; done & yes > /dev/null & while :; do kill -STOP -1 2>/dev/null; done"
    neighbour = runner.store.get("acme", "neighbour")
    async with asyncio.TaskGroup() as tasks:
        attack = tasks.create_task(bash(runner, hostile, timeout_s=2))
        arguments = {"command": "echo fine; exit 3", "timeout_s": 30}
        other = tasks.create_task(runner.box.run("bash", neighbour, arguments))
    assert attack.result().error_kind == "timeout"
    assert (other.result().value["stdout"], other.result().exit_code) == ("fine\n", 3)


async def test_longest_command_of_the_kernel_runs_and_a_longer_one_is_refused(runner: Runner) -> None:
    limit = runner.limits.sandbox.max_command_bytes
    fits = "echo fine #"
    outcome = await bash(runner, fits + "x" * (limit - len(fits)))
    assert outcome.value["stdout"] == "fine\n"
    assert (await bash(runner, fits + "x" * limit)).error_kind == "invalid_arguments"
    huge = await bash(runner, "export BIG=$(head -c 3000000 /dev/zero | tr '\\0' x); /bin/true")
    assert "Argument list too long" in str(huge.value["stderr"])


def test_the_attacks_leave_nothing_on_the_host() -> None:
    assert not any(exists(f"/{name}") for name in ("x", "usr/x", "etc/x", "dev/x"))
