"""Search in a workspace, with grep in the real sandbox."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.tool_runner.conftest import Runner


@pytest.fixture
async def filled(runner: Runner) -> Runner:
    """A workspace with two modules, a binary file, and files that a search skips."""
    await runner.bash(
        "mkdir -p src/deep .git; "
        "printf 'import os\\ndef Run(x):\\n    return x+1\\n' > src/a.py; "
        "printf 'run(x)\\n' > src/deep/b.txt; "
        "printf 'run\\0' > binary; printf 'run\\n' > .git/config; "
        "printf 'a:1:run\\n' > 'odd:2:name'; ln -s /etc/passwd outside"
    )
    return runner


async def found(runner: Runner, **arguments: Any) -> list[tuple[str, int, str]]:
    outcome = await runner.call("search_code", **arguments)
    assert not outcome.is_error, outcome.value
    matches: Any = outcome.value["matches"]
    return [(match["path"], match["line"], match["text"]) for match in matches]


async def test_lines_are_found_with_their_places_and_binary_files_are_skipped(filled: Runner) -> None:
    """R22: `search_code` is a tool."""
    assert await found(filled, query="run(") == [
        ("src/a.py", 2, "def Run(x):"),
        ("src/deep/b.txt", 1, "run(x)"),
    ]
    assert await found(filled, query="run", path="odd:2:name") == [("odd:2:name", 1, "a:1:run")]


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        ({"query": "Run", "case_sensitive": True}, ["src/a.py"]),
        ({"query": "run", "glob": "*.txt"}, ["src/deep/b.txt"]),
        ({"query": "run", "path": "/workspace/src/deep"}, ["src/deep/b.txt"]),
        ({"query": "r.n\\(", "regex": True, "path": "src/../src"}, ["src/a.py", "src/deep/b.txt"]),
        ({"query": "x+1"}, ["src/a.py"]),
        ({"query": "-e; touch owned"}, []),
        ({"query": "'; touch owned; '"}, []),
        ({"query": "root:"}, []),
    ],
)
async def test_a_search_is_narrowed_and_its_arguments_are_no_commands(
    filled: Runner, arguments: dict[str, Any], paths: list[str]
) -> None:
    assert [path for path, _, _ in await found(filled, **arguments)] == paths
    assert "owned" not in os.listdir(filled.workspace.directory)


async def test_many_matches_are_cut_with_a_note(runner: Runner) -> None:
    await runner.bash("seq 100000 | sed 's/$/ needle/' > many; printf '%05000d needle\\n' 1 > long")

    few = await runner.call("search_code", query="needle", max_results=3, path="many")
    most = await runner.call("search_code", query="needle")
    [long] = await found(runner, query="needle", path="long")

    matches: Any = few.value["matches"]
    assert [match["line"] for match in matches] == [1, 2, 3]
    assert few.truncated and most.truncated and "path" in str(few.value["more"])
    assert len(str(most.value["matches"])) < 20_000
    assert len(long[2]) == 300


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"query": "(", "regex": True}, "invalid_arguments"),
        ({"query": "x", "path": "missing"}, "tool_error"),
        ({"query": "x", "path": "../other"}, "tool_error"),
        ({"query": "x", "path": "/etc"}, "tool_error"),
        ({"query": "a\nb"}, "invalid_arguments"),
        ({"query": ""}, "invalid_arguments"),
    ],
)
async def test_a_search_that_cannot_run_states_why(
    runner: Runner, arguments: dict[str, Any], kind: str
) -> None:
    outcome = await runner.call("search_code", **arguments)

    assert (outcome.error_kind, bool(outcome.value["error"])) == (kind, True)
