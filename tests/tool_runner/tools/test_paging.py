"""A model reads long output and files page by page, following the notes in the results (R41 Q2)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from tests.tool_runner.conftest import Runner

from banksman.agent.protocols.base import result_text as json_text
from banksman.agent.providers.anthropic_request import result_text as anthropic_text
from banksman.contracts.messages import ToolMessage
from banksman.contracts.tools import ToolResult
from banksman.runs.outcome import result_json
from banksman.tool_runner.tools.toolbox import ToolOutcome

MAX_CHARS = 10_000
_NEXT = re.compile(r'Call read_file with path (".*") and byte_offset (\d+) to read on\.')

Render = Callable[[ToolMessage], str]


def openai_text(message: ToolMessage) -> str:
    return result_json(message.result)


def shown(render: Render, tool: str, outcome: ToolOutcome) -> str:
    """Return the text that a vendor's model receives for an outcome."""
    result = ToolResult(tool_call_id="k", content=outcome.value, is_error=outcome.is_error)
    return render(ToolMessage(name=tool, result=result))


def next_call(text: str) -> dict[str, object] | None:
    """Return the call that the note of a result names for the model; None at the end."""
    found = _NEXT.search(_more(text))
    return None if found is None else {"path": json.loads(found[1]), "byte_offset": int(found[2])}


def _more(text: str) -> str:
    """Return the note of a JSON result, which may have a line before it, or the end of a text result."""
    for part in (text, text.partition("\n")[2]):
        if part.startswith('{"success"'):
            return str(json.loads(part).get("more", ""))
    return text[-300:]


async def read_to_the_end(runner: Runner, render: Render, call: dict[str, object] | None) -> tuple[str, int]:
    """Return the content that a model read, and the number of calls."""
    content, calls = "", 0
    while call is not None:
        outcome = await runner.call("read_file", **call)
        text = shown(render, "read_file", outcome)
        assert len(text) < 2 * MAX_CHARS
        content += str(outcome.value["content"])
        calls += 1
        call = next_call(text)
    return content, calls


@pytest.fixture(params=[openai_text, anthropic_text, json_text])
def render(request: pytest.FixtureRequest) -> Render:
    """Every format in which a model receives results."""
    return request.param


async def test_a_megabyte_of_output_is_read_to_its_end(runner: Runner, render: Render) -> None:
    outcome = await runner.bash("seq -w 150000")
    expected = "".join(f"{number:06d}\n" for number in range(1, 150_001))
    assert len(expected) > 1_000_000

    text = shown(render, "bash", outcome)
    content, calls = await read_to_the_end(runner, render, next_call(text))

    assert len(text) < MAX_CHARS * 1.5
    assert content == expected
    assert calls == -(-len(expected) // MAX_CHARS)


async def test_a_file_of_five_megabytes_is_read_to_its_end(runner: Runner, render: Render) -> None:
    """The characters have one to four bytes, and offsets count bytes."""
    line = "naïve Überraschung 漢字 🎈 end\n"
    expected = line * (5_000_000 // len(line.encode()) + 1)
    path = 'a "quoted" näme.txt'
    target = runner.workspace.directory / path
    target.write_text(expected, encoding="utf-8")
    target.chmod(0o644)

    content, calls = await read_to_the_end(runner, render, {"path": path})

    assert content == expected
    assert calls == -(-len(expected) // MAX_CHARS)


async def test_complete_result_has_no_continuation(runner: Runner, render: Render) -> None:
    outcome = await runner.bash("echo short")
    assert next_call(shown(render, "bash", outcome)) is None
    assert "more" not in outcome.value


async def test_output_above_the_storage_limit_states_the_stored_bytes(runner: Runner) -> None:
    outcome = await runner.bash("head -c 13000000 /dev/zero | tr '\\0' x")
    assert "Only the first 12582912 bytes are stored." in str(outcome.value["more"])


def test_definitions_describe_paging_to_models(runner: Runner) -> None:
    described = {tool.name: tool.description for tool in runner.box.definitions}
    bash, read_file, web_fetch = described["bash"], described["read_file"], described["web_fetch"]
    assert "full_output_path" in bash and "read_file" in bash
    assert "10000 characters at a time" in read_file and "offset" in read_file
    assert "full_output_path" in web_fetch and "read_file" in web_fetch


@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        (None, "Gr\xfc\xdfe"),
        ("utf-8", "Gr\\xfc\\xdfe"),
        ("UTF-8", "Gr\\xfc\\xdfe"),
        ("latin-1", "Gr\xfc\xdfe"),
        ("windows-1252", "Gr\xfc\xdfe"),
        ("ascii", "Gr\xfc\xdfe"),
    ],
)
async def test_a_file_is_read_in_the_encoding_that_the_seeds_example_names(
    runner: Runner, encoding: str | None, content: str
) -> None:
    """R67: also by its absolute path in the workspace."""
    await runner.bash("printf 'Gr\\374\\337e' > old.txt")

    given = {} if encoding is None else {"encoding": encoding}
    outcome = await runner.call("read_file", path="/workspace/old.txt", **given)

    assert (outcome.value["content"], outcome.value["path"]) == (content, "old.txt")


async def test_an_unknown_encoding_is_named(runner: Runner) -> None:
    """R53."""
    await runner.bash("head -c 15000 /dev/zero | tr '\\0' '\\374' > long.txt")

    refused = await runner.call("read_file", path="long.txt", encoding="rot13")
    first = await runner.call("read_file", path="long.txt", encoding="latin-1")

    assert refused.error_kind == "invalid_arguments" and "encoding" in str(refused.value["error"])
    assert first.value["content"] == "\xfc" * 10_000
