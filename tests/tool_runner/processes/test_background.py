"""Commands in the background, with real sandboxes: what reaches them, what ends them, what is reported."""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.tool_runner.conftest import Runner

from banksman.contracts.wire import JsonObject

SERVER = "python3 -u -m http.server 8123 --bind 127.0.0.1"


async def started(runner: Runner, command: str) -> str:
    """Start a command in the background and return the id of its process."""
    outcome = await runner.call("bash", command=command, background=True)
    assert outcome.value["status"] == "running", outcome.value
    return str(outcome.value["process"])


async def ended(runner: Runner, process: str) -> JsonObject:
    """Wait for the end of a process and return its state."""
    async with asyncio.timeout(60):
        while True:
            outcome = await runner.call("process_output", process=process, wait_s=10)
            if outcome.value["status"] == "ended":
                return outcome.value


async def test_a_later_call_reaches_a_server_in_the_background_until_it_is_stopped(runner: Runner) -> None:
    (runner.workspace.directory / "greeting").write_text("hello from the server")
    process = await started(runner, SERVER)

    outcome = await runner.bash(f"until {CONNECT}; do :; done; {FETCH}")
    assert outcome.value["stdout"] == "hello from the server"

    output = await runner.call("process_output", process=process, wait_s=10)
    assert "GET /greeting" in str(output.value["output"])
    stopped = await runner.call("process_stop", process=process)
    assert (stopped.value["status"], stopped.value["reason"]) == ("ended", "it was stopped")
    assert (await runner.bash(CONNECT)).value["exit_code"] == 1


CONNECT = "(exec 3<>/dev/tcp/127.0.0.1/8123) 2>/dev/null"
FETCH = (
    'python3 -c "import urllib.request as u; '
    "print(u.urlopen('http://localhost:8123/greeting').read().decode(), end='')\""
)


async def test_output_is_returned_once_and_again_from_an_offset(runner: Runner) -> None:
    process = await started(runner, "echo one; read -r x < <(sleep 600); echo two")
    first = await runner.call("process_output", process=process, wait_s=10)
    if first.value["output"] == "":
        first = await runner.call("process_output", process=process, offset=0)
    assert first.value["output"] == "one\n" or first.value["output_bytes"] == 4
    second = await runner.call("process_output", process=process)
    assert second.value["output"] == ""
    again = await runner.call("process_output", process=process, offset=0)
    assert (again.value["output"], again.value["next_offset"]) == ("one\n", 4)


async def test_output_is_awaited_until_it_contains_a_text_or_the_process_has_ended(runner: Runner) -> None:
    until = "until [ -e {0} ]; do sleep 0.02; done; "
    steps = (until.format("a"), "echo -n tw; ", until.format("b"), "echo o; ", until.format("c"))
    process = await started(runner, "".join(steps))
    async with asyncio.TaskGroup() as calls:
        awaited = calls.create_task(runner.call("process_output", process=process, until="two", wait_s=60))
        await runner.bash("touch a")
        await runner.bash("touch b")
    assert awaited.result().value["output"] == "two\n"
    late = await runner.call("process_output", process=process, until="two", wait_s=0.1)
    assert (late.value["status"], late.value["output"]) == ("running", "")
    async with asyncio.TaskGroup() as calls:
        awaited = calls.create_task(runner.call("process_output", process=process, until="", wait_s=60))
        await runner.bash("touch c")
    assert (awaited.result().value["status"], awaited.result().value["exit_code"]) == ("ended", 0)


async def test_a_command_that_fails_at_once_is_reported_by_its_start_or_its_output(runner: Runner) -> None:
    outcome = await runner.call("bash", command="no-such-program", background=True)
    value = outcome.value
    if value["status"] == "running":
        value = await ended(runner, str(value["process"]))
        value["output"] = (
            await runner.call("process_output", process=str(value["process"]), offset=0)
        ).value["output"]
    assert value["exit_code"] == 127
    assert "no-such-program: command not found" in str(value["output"])


async def test_processes_are_listed_with_their_states(runner: Runner) -> None:
    running = await started(runner, "sleep 600")
    done = await runner.call("bash", command="exit 3", background=True)
    await ended(runner, str(done.value["process"]))
    listed = (await runner.call("process_list")).value["processes"]
    assert isinstance(listed, list)
    states = [
        (one["process"], one["status"], one.get("exit_code")) for one in listed if isinstance(one, dict)
    ]
    assert states == [(running, "running", None), (done.value["process"], "ended", 3)]


@pytest.mark.parametrize("tool", ["process_output", "process_stop"])
async def test_an_unknown_process_is_an_error_that_names_the_known_ones(runner: Runner, tool: str) -> None:
    process = await started(runner, "sleep 600")
    outcome = await runner.call(tool, process="p1")
    assert outcome.error_kind == "tool_error"
    assert process in str(outcome.value["error"])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"background": True, "session": "s"}, "background"),
        ({"background": True, "timeout_s": 5}, "timeout_s"),
        ({"language": "python"}, "language"),
        ({"session": "no spaces"}, "session"),
    ],
)
async def test_contradictory_arguments_are_refused(
    runner: Runner, arguments: dict[str, object], named: str
) -> None:
    outcome = await runner.call("bash", command="true", **arguments)
    assert outcome.error_kind == "invalid_arguments"
    assert named in str(outcome.value["error"])


@pytest.mark.parametrize(
    "command",
    ["sleep 600 &", "(setsid sleep 600 &)", "nohup sleep 600 >/dev/null 2>&1 &", "sleep 600 & disown"],
)
async def test_a_call_reports_the_processes_that_end_with_it(runner: Runner, command: str) -> None:
    outcome = await runner.bash(f"echo first\n{command}\n(exit 7)")
    assert (outcome.value["stdout"], outcome.value["exit_code"]) == ("first\n", 7)
    # A process that has just started may still have the name of its parent.
    named = r"left them running: (sleep|setsid|nohup|bash) \(\d+\)\. Use background"
    assert re.search(named, str(outcome.value["stderr"]))


@pytest.mark.parametrize("command", ["sleep 0 & wait", "echo a && echo b 2>&1 >/dev/null", "echo 'a & b'"])
async def test_a_call_that_leaves_nothing_running_reports_nothing(runner: Runner, command: str) -> None:
    outcome = await runner.bash(command)
    assert (outcome.value["stderr"], outcome.value["exit_code"]) == ("", 0)


async def test_a_command_that_kills_all_other_processes_goes_on(runner: Runner) -> None:
    outcome = await runner.bash("sleep 600 & kill -9 -1; echo alive; (exit 3)")
    assert (outcome.value["stdout"], outcome.value["exit_code"]) == ("alive\n", 3)


@pytest.mark.parametrize("options", ["set -eu", "set -f", "exec 3>&2; set -e", "set -x; { set +x; } 2>&-"])
async def test_options_of_the_shell_do_not_disturb_the_report(runner: Runner, options: str) -> None:
    outcome = await runner.bash(f"{options}\nsleep 600 &\nfalse || exit 7")
    assert outcome.value["exit_code"] == 7
    assert "left them running: " in str(outcome.value["stderr"])
