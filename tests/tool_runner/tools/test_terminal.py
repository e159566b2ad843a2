"""The output of a terminal, as a model and the page receive it."""

from __future__ import annotations

import pytest
from tests.tool_runner.conftest import Runner

from banksman.contracts.tools import ToolResult
from banksman.runs.outcome import result_json
from banksman.tool_runner.tools.terminal import last_state


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("10%\r20%\r100%\ndone\n", "100%\ndone\n"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("loading…\r\x1b[Kdone", "done"),
        ("abc\b\bX", "aXc"),
        ("abcdef\rxy", "xycdef"),
        ("\x1b]0;title\x07text\x1b[?25l", "text"),
        ("old\x1b[2K\rnew", "new"),
        ("\x1b[31mred\x1b[0m plain", "\x1b[31mred\x1b[0m plain"),
        ("\x1b[31mred", "\x1b[31mred\x1b[0m"),
        ("no control é", "no control é"),
    ],
)
def test_a_line_of_a_terminal_is_reduced_to_its_last_state(written: str, shown: str) -> None:
    assert last_state(written) == shown


async def test_a_model_gets_the_last_state_of_a_progress_bar(runner: Runner) -> None:
    outcome = await runner.bash(r"for n in 1 2 3; do printf '\r%d of 3' $n; done; printf '\n' >&2")
    assert (outcome.value["stdout"], outcome.value["stderr"]) == ("3 of 3", "\n")


async def test_a_model_gets_no_colours_and_the_page_does(runner: Runner) -> None:
    outcome = await runner.bash(r"printf '\033[31mred\033[0m \\u001b[1m'")
    result = ToolResult(tool_call_id="k", content=outcome.value)
    assert outcome.value["stdout"] == "\x1b[31mred\x1b[0m \\u001b[1m"
    assert r'"stdout": "red \\u001b[1m"' in result_json(result)
