"""After any end of a call, none of its processes is left. Its processes run without privileges."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import pytest
from tests.support import privileged
from tests.support.polling import eventually, let_others_run, scripted_pause, wait_until
from tests.tool_runner.conftest import DockerBackend, Runner, exists, only, started

from banksman.tool_runner.identity import DEFAULT_SANDBOX_UID, sandbox_identity
from banksman.tool_runner.sandbox.base import SandboxCommand, Stop
from banksman.tool_runner.sandbox.bwrap import processes
from banksman.tool_runner.sandbox.bwrap.processes import end_leftovers
from banksman.tool_runner.settings import WorkspaceLimits
from banksman.tool_runner.workspaces.workspace import WorkspaceStore


def living(marker: str) -> list[int]:
    """Return the processes, except zombies, whose command line contains `marker`."""
    return [pid for pid in _pids() if marker in _read(pid, "cmdline")]


async def sleeping(seconds: str) -> int:
    """Wait for the process `sleep {seconds}` and return its id."""
    return (await eventually(lambda: living(f"sleep\0{seconds}"), interval_s=0.005))[0]


def watched(pids: Iterable[int]) -> list[int]:
    """Open a pidfd for each process that still exists."""
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            found.append(os.pidfd_open(pid))
    return found


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def companions(pid: int) -> list[int]:
    """Return all processes in the pid namespace of a process, including itself."""
    return [each for each in _pids() if _namespace(each) == _namespace(pid)]


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def sandboxes() -> list[int]:
    """Return the bwraps below this process, each with its descendants."""
    bwraps = [pid for pid in processes.descendants(os.getpid()) if _read(pid, "comm") == "bwrap\n"]
    return sorted({each for pid in bwraps for each in processes.descendants(pid)})


def spawner() -> int:
    """Return the spawner of this process."""
    (pid,) = [pid for pid in processes.children(os.getpid()) if "spawner_process" in _read(pid, "cmdline")]
    return pid


def user_ids(pid: int) -> set[int]:
    lines = [line for line in _read(pid, "status").splitlines() if line.startswith("Uid:")]
    return {int(uid) for line in lines for uid in line.split()[1:]}


@contextlib.contextmanager
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Run a child process that is not a sandbox."""
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.asynccontextmanager
async def running(runner: Runner, script: str) -> AsyncIterator[Stop]:
    """Run a command that has written output and continues; kill it at the end."""
    has_output, stop = asyncio.Event(), Stop()
    command = SandboxCommand(f"echo ready; {script}", runner.workspace.directory, 30)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(
            runner.sandbox.run(command, on_output=lambda *_: has_output.set(), stop=stop)
        )
        try:
            await started(has_output)
            yield stop
        finally:
            stop.request("cancelled")
            (await task).output.close()


HARD_TO_KILL = "trap '' TERM HUP INT; (setsid sleep {n}1 &); nohup sleep {n}2 2>/dev/null & sleep {n}3"


async def test_time_out_leaves_no_process(runner: Runner) -> None:
    outcome = await runner.bash(HARD_TO_KILL.format(n=77801), timeout_s=0.5)
    assert outcome.error_kind == "timeout"
    assert living("sleep\0" + "77801") == []


async def test_stop_leaves_no_process_and_returns_partial_output(runner: Runner) -> None:
    has_output, stop = asyncio.Event(), Stop()
    async with asyncio.TaskGroup() as group:
        call = group.create_task(
            runner.box.run(
                "bash",
                runner.workspace,
                {"command": "echo started; " + HARD_TO_KILL.format(n=77802)},
                on_output=lambda *_: has_output.set(),
                stop=stop,
            )
        )
        await started(has_output)
        stop.request("cancelled")
        outcome = await call
    assert (outcome.error_kind, outcome.value["stdout"]) == ("cancelled", "started\n")
    assert living("sleep\0" + "77802") == []


async def test_a_command_stopped_before_it_has_a_slot_is_never_spawned(runner: Runner) -> None:
    stop = Stop()
    stop.request("cancelled")
    outcome = await runner.sandbox.run(
        SandboxCommand("touch effect", runner.workspace.directory, 5), stop=stop
    )
    outcome.output.close()
    assert outcome.killed_reason == "cancelled"
    assert not exists(str(runner.workspace.directory / "effect"))


async def test_cancelling_the_caller_leaves_no_process(runner: Runner) -> None:
    has_output = asyncio.Event()
    command = SandboxCommand("echo; " + HARD_TO_KILL.format(n=77803), runner.workspace.directory, 30)
    call = asyncio.create_task(runner.sandbox.run(command, on_output=lambda *_: has_output.set()))
    await started(has_output)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert living("sleep\0" + "77803") == []


async def test_background_processes_do_not_outlive_their_call(runner: Runner) -> None:
    outcome = await runner.bash("nohup setsid sleep 778041 >/dev/null 2>&1 & echo done")
    assert outcome.value["stdout"] == "done\n"
    assert living("778041") == []


async def test_background_process_with_open_output_does_not_delay_the_result(runner: Runner) -> None:
    outcome = await runner.bash("sleep 778051 & echo done")
    assert outcome.value["stdout"] == "done\n"
    assert outcome.duration_ms < 15_000
    assert living("778051") == []


async def test_stop_at_any_moment_of_a_start_leaves_no_process(runner: Runner) -> None:
    """bubblewrap issues 633 and 700: a sandbox stays alive if its outer bwrap is killed while it starts."""
    loop = asyncio.get_running_loop()
    command = SandboxCommand("sleep 778061", runner.workspace.directory, 30)
    for step in range(40):
        stop = Stop()
        loop.call_later(step * 0.0005, stop.request, "cancelled")
        outcome = await runner.sandbox.run(command, stop=stop)
        outcome.output.close()
        assert living("778061") == []
        assert processes.orphans() == []


async def test_running_calls_are_not_affected_by_the_end_of_others(runner: Runner) -> None:
    elsewhere = runner.store.get("acme", "c2").directory
    async with running(runner, "sleep 778071"):
        before = await sleeping("778071")
        for _ in range(3):
            other = SandboxCommand("sleep 9", elsewhere, 0.05)
            (await runner.sandbox.run(other)).output.close()
        assert await processes.kill_orphans() == 0
        assert living("sleep\0" + "778071") == [before]


@only("bwrap", "a container has its own first process")
async def test_sweep_finds_no_process_of_calls_that_end_by_themselves(runner: Runner) -> None:
    """bwrap ends before the first process of its namespace, which is still ending and is not a leftover."""
    seen: list[int] = []

    async def look() -> None:
        while True:
            seen.extend(processes.orphans())
            await let_others_run()

    async def calls() -> None:
        for _ in range(10):
            command = SandboxCommand("echo", runner.workspace.directory, 20)
            (await runner.sandbox.run(command)).output.close()

    looking = asyncio.create_task(look())
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(calls())
    looking.cancel()
    await asyncio.wait([looking])
    assert seen == []


async def test_the_sweep_spares_children_that_are_not_sandboxes(runner: Runner) -> None:
    with bystander() as child:
        await runner.bash("sleep 9", timeout_s=0.05)
        assert await processes.kill_orphans() == 0
        assert child.poll() is None


@only("bwrap", "a container has no spawner")
@pytest.mark.parametrize("delay_ms", range(0, 30, 2))
async def test_killed_spawner_leaves_no_process_and_the_next_call_works(
    runner: Runner, delay_ms: int
) -> None:
    await runner.bash("true")
    asyncio.get_running_loop().call_later(delay_ms / 1000, os.kill, spawner(), signal.SIGKILL)
    outcome = await runner.bash("sleep 778091")
    assert outcome.error_kind == "unavailable"
    assert living("sleep\0" + "778091") == []
    assert processes.orphans() == []
    assert (await runner.bash("echo again")).value["stdout"] == "again\n"


@only("bwrap", "the environment of a container's first process is not readable")
async def test_bwrap_itself_starts_with_an_empty_environment(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary")
    async with running(runner, "sleep 778101"):
        bwraps = [pid for pid in sandboxes() if _read(pid, "comm") == "bwrap\n"]
        environments = {_read(pid, "environ") for pid in (*bwraps, spawner())}
    assert len(bwraps) == 2
    assert environments == {""}


async def test_command_inherits_only_the_standard_descriptors(runner: Runner) -> None:
    outcome = await runner.bash("for n in {0..255}; do [ -e /proc/$$/fd/$n ] && echo -n $n; done")
    assert outcome.value["stdout"] == "012"


async def test_no_process_beside_a_command_runs_as_real_root(runner: Runner) -> None:
    async with running(runner, "sleep 778121 & wait"):
        one = await sleeping("778121")
        ids = [user_ids(pid) for pid in companions(one)]
        score = _read(one, "oom_score_adj").strip()
    assert len(ids) == 3
    assert set().union(*ids) == {runner.identity.uid}
    assert runner.identity.uid != 0
    assert score == "1000"


async def test_command_has_no_capability_and_cannot_gain_one(runner: Runner) -> None:
    async with running(runner, "sleep 778122 & wait"):
        status = _read(await sleeping("778122"), "status")
    facts = dict(line.split(":", 1) for line in status.splitlines())
    assert {facts[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (facts["NoNewPrivs"].strip(), facts["Seccomp"].strip()) == ("1", "2")


@only("bwrap", "its processes outside the namespace")
async def test_no_process_of_a_call_runs_as_real_root(runner: Runner) -> None:
    async with running(runner, "sleep 778111 & wait"):
        tree = sandboxes()
        ids = [user_ids(pid) for pid in (*tree, spawner())]
        scores = {_read(pid, "oom_score_adj").strip() for pid in tree}
        kept = _read(spawner(), "oom_score_adj")
    assert len(ids) >= 4
    assert set().union(*ids) == {runner.identity.uid}
    assert runner.identity.uid != 0
    assert scores == {"1000"}
    assert kept == _read(os.getpid(), "oom_score_adj")


async def test_command_cannot_signal_processes_outside(runner: Runner) -> None:
    with bystander() as outside:
        outcome = await runner.bash(f"kill -9 {outside.pid}; kill -9 -1; echo")
        assert outcome.is_error is False
        assert outside.poll() is None


_ONE_CALL = textwrap.dedent("""
    import asyncio, sys
    from pathlib import Path
    from banksman.tool_runner.identity import sandbox_identity
    from banksman.tool_runner.settings import SandboxLimits
    from banksman.tool_runner.sandbox.base import SandboxCommand

    def make(root):
        if len(sys.argv) == 3:
            from banksman.tool_runner.sandbox.bwrap.sandbox import BwrapSandbox
            return BwrapSandbox(sandbox_identity(), SandboxLimits())
        from banksman.tool_runner.sandbox.docker.sandbox import DockerSandbox
        from banksman.tool_runner.settings import DockerSettings
        return DockerSandbox(root, sandbox_identity(), SandboxLimits(), DockerSettings(image=sys.argv[3]))

    async def main():
        sandbox = make(Path(sys.argv[1]).parent.parent)
        command = SandboxCommand(sys.argv[2], Path(sys.argv[1]), 60)
        show = lambda _, chunk: print(chunk.decode(), end="", flush=True)
        (await sandbox.run(command, on_output=show)).output.close()

    asyncio.run(main())
""")


def test_sandboxes_end_when_their_runner_is_killed(
    root: Path, backend: str, request: pytest.FixtureRequest
) -> None:
    workspace = WorkspaceStore(root, sandbox_identity(), WorkspaceLimits()).get("acme", "c1").directory
    arguments = [sys.executable, "-c", _ONE_CALL, str(workspace), "echo ready; sleep 778131"]
    if backend == "docker":
        docker: DockerBackend = request.getfixturevalue("docker")
        arguments.append(str(docker.settings.image))
    with contextlib.ExitStack() as opened:
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as other:
            opened.callback(other.kill)
            assert other.stdout is not None
            assert other.stdout.readline() == b"ready\n"
            asyncio.run(sleeping("778131"))
            sandbox = watched(pid for pid in living("778131") if pid != other.pid)
            other.kill()
        for pidfd in sandbox:
            opened.callback(os.close, pidfd)
        assert len(sandbox) >= 1
        assert all(ended(pidfd) for pidfd in sandbox), "the sandbox outlived its runner"


_MANY_RUNNERS = textwrap.dedent("""
    import asyncio, os, sys
    from pathlib import Path
    from banksman.tool_runner.identity import sandbox_identity
    from banksman.tool_runner.settings import SandboxLimits
    from banksman.tool_runner.sandbox.bwrap import processes
    from banksman.tool_runner.sandbox.base import SandboxCommand
    from banksman.tool_runner.sandbox.bwrap.sandbox import BwrapSandbox

    async def main():
        sandbox = BwrapSandbox(sandbox_identity(), SandboxLimits())
        run = lambda script: sandbox.run(SandboxCommand(script, Path(sys.argv[1]), 60))
        (await run("true")).output.close()
        print(os.getpid(), *processes.children(os.getpid()), flush=True)
        await run(sys.argv[2])

    for _ in sys.stdin:
        if os.fork() == 0:
            asyncio.run(main())
""")


@contextlib.contextmanager
def many_runners(workspace: Path, script: str) -> Iterator[Callable[[], tuple[int, int]]]:
    """Start runners, each with one call that is starting; yield the process ids of runners and spawners.

    The runners are forked: importing the modules again takes longer than the tested steps.
    """
    arguments = [sys.executable, "-c", _MANY_RUNNERS, str(workspace), script]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as runners:
        assert runners.stdin is not None and runners.stdout is not None
        requests, replies = runners.stdin, runners.stdout

        def start() -> tuple[int, int]:
            requests.write(b"next\n")
            requests.flush()
            runner, spawner = map(int, replies.readline().split())
            return runner, spawner

        yield start


def test_runner_killed_at_any_moment_of_a_spawn_leaves_no_process(root: Path) -> None:
    workspace = WorkspaceStore(root, sandbox_identity(), WorkspaceLimits()).get("acme", "c1").directory
    moments = random.Random(20)
    with many_runners(workspace, "sleep 778141") as start:
        for _ in range(60):
            runner, spawner = start()
            with opened(spawner) as spawner_fd:
                scripted_pause(moments.uniform(0, 0.02))
                os.kill(runner, signal.SIGKILL)
                assert ended(spawner_fd), "the spawner outlived its runner"
            assert living("-c\0sleep 778141") + living("sleep\0" + "778141") == []


def test_command_does_not_start_after_runner_and_spawner_are_killed(root: Path) -> None:
    """At most one waiting bwrap is left, which never starts its command."""
    workspace = WorkspaceStore(root, sandbox_identity(), WorkspaceLimits()).get("acme", "c1").directory
    moments = random.Random(21)
    with many_runners(workspace, "sleep 778161") as start:
        for _ in range(20):
            runner, spawner = start()
            scripted_pause(moments.uniform(0, 0.02))
            os.kill(runner, signal.SIGKILL)
            os.kill(spawner, signal.SIGKILL)
    commands = watched(pid for pid in living("-c\0sleep 778161") if _read(pid, "comm") != "bwrap\n")
    assert all(ended(pidfd) for pidfd in commands)
    # A command that began before the kills may still be ending; one that began later would sleep for days.
    wait_until(lambda: not living("sleep\0" + "778161"), failure=lambda: "a command still runs")
    for pidfd in commands:
        os.close(pidfd)
    for pid in living("-c\0sleep 778161"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def opened(pid: int) -> Iterator[int]:
    """A pidfd."""
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(10_000))


_LEFT = (
    "bwrap --unshare-user --unshare-pid --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib "
    "--symlink usr/lib64 /lib64 --proc /proc --bind {workspace} /workspace -- "
    "bash -c 'echo ready; sleep {word}; true'"
)
"""Run a sandbox without a spawner that does not die with its parent."""


@contextlib.contextmanager
def left_behind(workspace: Path, word: str) -> Iterator[subprocess.Popen[bytes]]:
    command = shlex.split(_LEFT.format(workspace=shlex.quote(str(workspace)), word=word))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()
            end_leftovers(workspace)


def test_start_ends_only_sandboxes_of_its_own_workspaces(root: Path) -> None:
    ours, others = root / "a runner's" / "acme" / "c1", root / "another's" / "acme" / "c1"
    ours.mkdir(parents=True)
    others.mkdir(parents=True)
    with left_behind(ours, "778151") as left, left_behind(others, "778152") as spared:
        assert end_leftovers(ours.parent.parent) == 1
        assert left.wait(5) != 0
        assert living("sleep\0" + "778151") == []
        assert spared.poll() is None
        assert len(living("sleep\0" + "778152")) == 1
    assert end_leftovers(root) == 0


ORDINARY_UID = 61018 if os.geteuid() == 0 else os.geteuid()


def run_as_ordinary_user(*arguments: str) -> subprocess.CompletedProcess[str]:
    switch = os.geteuid() == 0
    return subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        timeout=20,
        env={"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]},
        cwd="/",
        user=ORDINARY_UID if switch else None,
        group=ORDINARY_UID if switch else None,
        extra_groups=[] if switch else None,
    )


def ordinary_python() -> str | None:
    """Return a Python of this version that an unprivileged user can execute."""
    for candidate in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        with contextlib.suppress(OSError):
            if run_as_ordinary_user(candidate, "-c", "import pydantic_core").returncode == 0:
                return candidate
    return None


def test_runner_of_an_ordinary_user_runs_commands_as_that_user(root: Path) -> None:
    python = ordinary_python()
    privileged.require("a Python that other users can start", python is not None, "a runner without root")
    assert python is not None
    workspace = root / "ordinary"
    workspace.mkdir()
    os.chown(workspace, ORDINARY_UID, -1)
    done = run_as_ordinary_user(python, "-c", _ONE_CALL, str(workspace), "touch made; id -u")
    assert done.stdout == "1000\n", done.stderr
    assert (workspace / "made").stat().st_uid == ORDINARY_UID


async def test_root_runner_runs_commands_as_the_sandbox_user(runner: Runner, is_root: bool) -> None:
    privileged.require("root", is_root, "whether a runner that is root drops it")
    await runner.bash("touch made")
    assert (runner.workspace.directory / "made").stat().st_uid == DEFAULT_SANDBOX_UID
    await runner.call("write_file", path="deep/down/text", content="x")
    written = runner.workspace.directory / "deep"
    assert {path.stat().st_uid for path in (written, *written.rglob("*"))} == {DEFAULT_SANDBOX_UID}
    assert (await runner.bash("echo more >> deep/down/text && rm -r deep")).value["success"] is True
