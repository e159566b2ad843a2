"""Attacks of commands in the background and of sessions: the rules of calls hold for both."""

from __future__ import annotations

import inspect
import json
import os
import socket
from typing import Literal

import pytest
from tests.support.polling import eventually
from tests.tool_runner.conftest import Runner, only
from tests.tool_runner.processes.test_background import ended, started
from tests.tool_runner.sandbox.test_attacks import HARNESS, PROBES
from tests.tool_runner.sandbox.test_process_tree import bystander, living, sleeping

from banksman.tool_runner.processes.process import MAX_KEPT_AFTER_END_BYTES
from banksman.tool_runner.settings import MIB, RunnerLimits, SandboxLimits
from banksman.tool_runner.tools.toolbox import ToolOutcome

WAYS = ("background", "session", "python")
CANARY = "sk-canary-of-a-lasting-process"
LOOK = """
import json, os, socket, sys
word, port, neighbour = sys.argv[1:]

def read(path):
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""

def connects(address):
    try:
        socket.create_connection(address, 1).close()
    except OSError:
        return False
    return True

pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
print(json.dumps({
    "own": read("/proc/self/comm").strip(),
    "others": [pid for pid in pids if f"sleep\\0{word}" in read(f"/proc/{pid}/cmdline")],
    "secrets": [pid for pid in pids if "sk-can" + "ary" in read(f"/proc/{pid}/environ")],
    "reached": [a for a in [["127.0.0.1", int(port)], ["192.0.2.1", 80], ["1.1.1.1", 53]] if connects(a)],
    "neighbour": os.path.exists(neighbour),
}))
"""


async def in_session(runner: Runner, way: str, command: str, start: Literal["run", "Popen"]) -> ToolOutcome:
    """Run a command in a session of bash, or let Python start it; with `Popen`, do not wait for its end."""
    if way == "session":
        return await runner.call("bash", command=f"{command}{' &' if start == 'Popen' else ''}", session="s")
    code = f"import subprocess; done = subprocess.{start}(['bash', '-c', {command!r}])"
    return await runner.call("bash", command=code, session="s", language="python")


async def output_of(runner: Runner, way: str, command: str) -> str:
    """Run a command to its end in the background or in a session; return what it wrote."""
    if way != "background":
        value = (await in_session(runner, way, command, "run")).value
        return f"{value['stdout']}{value['stderr']}"
    process = (await runner.call("bash", command=command, background=True)).value["process"]
    await ended(runner, str(process))
    return str((await runner.call("process_output", process=process, offset=0)).value["output"])


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the probes call by the numbers of x86-64")
@pytest.mark.parametrize("way", WAYS)
async def test_no_attack_from_a_lasting_process_succeeds(runner: Runner, way: str) -> None:
    parts = [HARNESS]
    parts += [f"probe = {name!r}\n{inspect.cleandoc(body)}\n" for name, body in PROBES.items()]
    content = "\n".join([*parts, "print(json.dumps(succeeded))"])
    await runner.call("write_file", path="attack.py", content=content)
    assert set(json.loads(await output_of(runner, way, "python3 attack.py"))) == {"control"}


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)


@pytest.mark.parametrize("way", WAYS)
async def test_a_lasting_process_sees_neither_host_nor_neighbour_nor_secret(
    secret: None, runner: Runner, way: str
) -> None:
    await runner.call("write_file", path="look.py", content=LOOK)
    neighbour = runner.store.get("acme", "c2").directory
    process = await started(runner, "sleep 778201")
    with socket.create_server(("127.0.0.1", 0)) as server, bystander():
        arguments = f"60 {server.getsockname()[1]} {neighbour}"
        seen = json.loads(await output_of(runner, way, f"python3 look.py {arguments}"))
    assert seen.pop("own").startswith("python3")
    assert seen == {"others": [], "secrets": [], "reached": [], "neighbour": False}
    # Not even a process of the same conversation.
    other = json.loads(await output_of(runner, way, f"python3 look.py 778201 1 {neighbour}"))
    assert other["others"] == []
    await runner.call("process_stop", process=process)


SURVIVORS = {
    "traps": "trap '' TERM HUP INT QUIT; while :; do sleep {n}1; done",
    "setsid": "(setsid sleep {n}1 &); sleep {n}2",
    "nohup": "nohup sleep {n}1 >/dev/null 2>&1 & disown; sleep {n}2",
    "double fork": """python3 -c '
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "{n}1"])
    os._exit(0)
os.wait()
os.execvp("sleep", ["sleep", "{n}2"])'""",
    "stopped": "sleep {n}1 & until grep -qs sleep /proc/$!/comm; do :; done; kill -STOP $!; kill -STOP $$",
}


@pytest.mark.parametrize("kind", SURVIVORS)
async def test_no_child_of_a_process_survives_its_stop(runner: Runner, kind: str) -> None:
    process = await started(runner, SURVIVORS[kind].format(n=77821))
    await sleeping("778211")
    stopped = await runner.call("process_stop", process=process)
    assert (stopped.value["status"], stopped.value["reason"]) == ("ended", "it was stopped")
    assert living("sleep\0" + "77821") == []


@pytest.mark.parametrize("kind", ["setsid", "nohup", "double fork"])
async def test_no_child_survives_a_process_that_ends_by_itself(runner: Runner, kind: str) -> None:
    command = SURVIVORS[kind].format(n=77822).replace("sleep 778222", "read -r x <go; exit 3")
    command = command.replace('os.execvp("sleep", ["sleep", "778222"])', 'open("go").read(); os._exit(3)')
    await runner.bash("mkfifo go")
    process = await started(runner, command)
    await sleeping("778221")
    await runner.bash("echo >go")
    assert (await ended(runner, process))["exit_code"] == 3
    assert living("sleep\0" + "77822") == []


@pytest.mark.parametrize("kind", ["setsid", "nohup", "double fork"])
async def test_no_child_survives_its_session(runner: Runner, kind: str) -> None:
    command = SURVIVORS[kind].format(n=77823)
    outcome = await runner.call("bash", command=command, session="s", timeout_s=2)
    assert outcome.error_kind == "timeout"
    assert "variables" in str(outcome.value["note"])
    assert living("sleep\0" + "77823") == []


async def test_no_process_survives_the_end_of_its_conversation(runner: Runner) -> None:
    """The sandbox ends with its last process, whatever each of them left running."""
    processes = [
        await started(runner, command.format(n=f"7782{4 + index}"))
        for index, command in enumerate(SURVIVORS.values())
    ]
    for index in range(len(processes)):
        await sleeping(f"7782{4 + index}1")
    await runner.call("bash", command="sleep 778241 &", session="s")
    listed = (await runner.call("process_list")).value["processes"]
    assert isinstance(listed, list) and len(listed) == len(processes) + 1
    for one in listed:
        assert isinstance(one, dict)
        await runner.call("process_stop", process=one["process"])
    assert living("sleep\0" + "7782") == []


BOMB = "bash -c 'bomb() {{ bomb & bomb & wait; }}; bomb # {word}'"
BESIDE = 16
"""At most so many processes that set up the sandbox name the command too."""


async def lasting(runner: Runner, way: str, command: str) -> str:
    """Start a command that only a limit or a stop ends; return the id of its process."""
    if way == "background":
        return str((await runner.call("bash", command=command, background=True)).value["process"])
    await in_session(runner, way, command, "Popen")
    listed = (await runner.call("process_list")).value["processes"]
    assert isinstance(listed, list) and isinstance(listed[-1], dict)
    return str(listed[-1]["process"])


@pytest.mark.parametrize("way", WAYS)
async def test_a_fork_bomb_is_limited_and_ends_when_it_is_stopped(runner: Runner, way: str) -> None:
    process = await lasting(runner, way, BOMB.format(word="778251"))

    async def limited() -> bool:
        output = await runner.call("process_output", process=process, offset=0, wait_s=5)
        return "Resource temporarily unavailable" in str(output.value["output"])

    await eventually(limited)
    assert len(living("778251")) <= runner.limits.sandbox.max_processes + BESIDE
    neighbour = runner.store.get("acme", "neighbour")
    other = await runner.box.run("bash", neighbour, {"command": "echo fine | cat", "timeout_s": 30})
    assert other.value["stdout"] == "fine\n"
    stopped = await runner.call("process_stop", process=process)
    assert stopped.value["status"] == "ended", stopped.value
    assert living("778251") == []


class TestFlood:
    @pytest.fixture
    def limits(self) -> RunnerLimits:
        return RunnerLimits(sandbox=SandboxLimits(max_output_bytes=8 * MIB))

    @pytest.mark.parametrize("way", WAYS)
    async def test_a_flood_of_output_ends_a_process_and_only_its_end_is_kept(
        self, runner: Runner, way: str
    ) -> None:
        process = await lasting(runner, way, "yes")
        value = await ended(runner, process)
        assert value["reason"] == "it reached a limit of its sandbox: output_limit"
        assert 8 * MIB <= int(str(value["output_bytes"])) < 16 * MIB
        assert len(str(value["output"])) <= runner.limits.max_output_chars
        first = (await runner.call("process_output", process=process, offset=0)).value
        kept = int(str(value["output_bytes"])) - int(str(first["omitted_bytes"]))
        assert 0 < kept <= MAX_KEPT_AFTER_END_BYTES
        assert str(first["output"]).startswith(("y\n", "\ny\n"))

    async def test_a_flood_of_a_script_ends_its_session_and_says_so(self, runner: Runner) -> None:
        outcome = await runner.call("bash", command="yes", session="s")
        assert (outcome.error_kind, outcome.truncated) == ("output_limit", True)
        assert "variables" in str(outcome.value["note"])
        assert len(str(outcome.value["stdout"])) <= runner.limits.max_output_chars


HOG = """
import os, signal
for _ in range({processes}):
    if os.fork() == 0:
        block = bytearray(b"x") * (30 << 20)
        signal.pause()
os.wait()
"""


class TestMemory:
    @pytest.fixture
    def limits(self) -> RunnerLimits:
        return RunnerLimits(sandbox=SandboxLimits(memory_bytes=100 * MIB, watchdog_interval_s=0.05))

    async def test_a_hog_of_many_processes_is_killed(self, runner: Runner) -> None:
        await runner.call("write_file", path="hog.py", content=HOG.format(processes=6))
        value = (await runner.call("bash", command="python3 hog.py", background=True)).value
        value = value if value["status"] == "ended" else await ended(runner, str(value["process"]))
        assert value["reason"] == "it reached a limit of its sandbox: memory_limit"

    async def test_a_script_of_a_session_is_killed(self, runner: Runner) -> None:
        await runner.call("write_file", path="hog.py", content=HOG.format(processes=6))
        outcome = await runner.call("bash", command="python3 hog.py", session="s")
        assert "memory_limit" in str(outcome.value), outcome.value
        assert "variables" in str(outcome.value["note"])

    @only("bwrap", "a container has all limits")
    async def test_the_processes_of_a_conversation_share_the_memory_of_one_command(
        self, runner: Runner
    ) -> None:
        await runner.call("write_file", path="hog.py", content=HOG.format(processes=2))
        processes = [await lasting(runner, way, "python3 hog.py") for way in WAYS[:2]]
        reasons = [(await ended(runner, process))["reason"] for process in processes]
        assert reasons == ["it reached a limit of its sandbox: memory_limit"] * 2


class TestQuota:
    @pytest.fixture
    def limits(self, small_workspace: RunnerLimits) -> RunnerLimits:
        return small_workspace

    @pytest.mark.parametrize("way", WAYS)
    async def test_a_process_that_fills_its_workspace_is_killed(self, runner: Runner, way: str) -> None:
        fill = "bash -c 'for i in {1..1000000}; do : >f$i; done'"
        process = await lasting(runner, way, fill)
        value = await ended(runner, process)
        assert value["reason"] == "it reached a limit of its sandbox: workspace_limit"
