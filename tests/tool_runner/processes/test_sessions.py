"""Sessions of bash and Python, with real sandboxes."""

from __future__ import annotations

import pytest
from tests.tool_runner.conftest import Runner

from banksman.tool_runner.tools.toolbox import ToolOutcome


async def shell(runner: Runner, command: str, **arguments: object) -> ToolOutcome:
    return await runner.call("bash", command=command, session="s", **arguments)


async def python(runner: Runner, code: str, **arguments: object) -> ToolOutcome:
    return await runner.call("bash", command=code, session="py", language="python", **arguments)


async def test_a_shell_keeps_variables_functions_and_directory(runner: Runner) -> None:
    await shell(runner, "count=5; mkdir -p deep/er; cd deep/er; hello() { echo hello $count; }")
    outcome = await shell(runner, "hello; pwd; echo problem >&2; (exit 7)")
    value = outcome.value
    assert (value["stdout"], value["stderr"]) == ("hello 5\n/workspace/deep/er\n", "problem\n")
    assert (value["exit_code"], value["success"], outcome.is_error) == (7, False, False)


async def test_python_keeps_names_and_prints_the_last_value(runner: Runner) -> None:
    await python(runner, "import math\ndef area(r):\n    return round(math.pi * r * r, 2)")
    assert (await python(runner, "x = area(2)\nx")).value["stdout"] == "12.57\n"
    outcome = await python(runner, "print(x)\n1 / 0")
    assert outcome.value["stdout"] == "12.57\n"
    assert outcome.value["exit_code"] == 1
    assert str(outcome.value["stderr"]).splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "_run" not in str(outcome.value["stderr"])


async def test_a_session_without_its_python_or_with_another_language_is_refused(runner: Runner) -> None:
    await python(runner, "x = 1")
    outcome = await runner.call("bash", command="echo", session="py")
    assert outcome.error_kind == "tool_error"
    assert "runs python" in str(outcome.value["error"])


async def test_the_time_out_of_a_script_ends_its_session_and_the_result_names_the_loss(
    runner: Runner,
) -> None:
    await shell(runner, "x=5")
    outcome = await shell(runner, "echo early; sleep 600", timeout_s=1)
    assert (outcome.error_kind, outcome.value["stdout"]) == ("timeout", "early\n")
    assert "variables" in str(outcome.value["note"])
    assert (await shell(runner, "echo [$x]")).value["stdout"] == "[]\n"


async def test_exit_ends_a_session(runner: Runner) -> None:
    outcome = await shell(runner, "echo last; exit 4")
    assert (outcome.value["stdout"], outcome.value["exit_code"]) == ("last\n", 4)
    assert "variables" in str(outcome.value["note"])


async def test_a_server_of_a_session_lasts_as_long_as_the_session(runner: Runner) -> None:
    await shell(runner, "python3 -m http.server 8124 --bind 127.0.0.1 >log 2>&1 &")
    reached = (
        "for i in $(seq 100); do (exec 3<>/dev/tcp/127.0.0.1/8124) 2>/dev/null && echo ok && break; done"
    )
    assert "ok" in str((await shell(runner, f"until [[ -n $r ]]; do r=$({reached}); done; echo $r")).value)
    assert (await runner.bash(reached)).value["stdout"] == "ok\n"


async def test_a_long_output_is_cut_as_that_of_a_call(runner: Runner) -> None:
    outcome = await shell(runner, "seq 1 20000")
    assert outcome.truncated and len(str(outcome.value["stdout"])) <= 10_000
    assert str(outcome.value["stdout"]).endswith("20000\n")
    assert outcome.output is not None and outcome.output.count(b"\n") == 20_000
    assert (await shell(runner, "echo next")).value["stdout"] == "next\n"


@pytest.mark.parametrize("size", [1, 60_000, 96_000])
async def test_a_script_of_any_allowed_size_runs(runner: Runner, size: int) -> None:
    outcome = await shell(runner, f"x='{'x' * (size - 40)}'; echo ${{#x}}" if size > 100 else ":")
    assert outcome.value["exit_code"] == 0


async def test_output_with_parts_of_a_mark_is_complete(runner: Runner) -> None:
    code = "import os; data = b'\\0' * 100 + b'abc\\0' + b'1' * 33 + b' 5\\0'; os.write(1, data * 500)"
    outcome = await python(runner, f"{code}; None")
    assert outcome.value["total_bytes"] == 500 * (100 + 4 + 33 + 3)
