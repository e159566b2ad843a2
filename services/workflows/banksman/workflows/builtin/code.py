"""Workflows for code in the workspace: search it, test it, change it."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, cast

from pydantic import Field

from banksman.contracts.wire import JsonObject, JsonValue
from banksman.sdk.workflows import WorkflowContext, hint, workflow
from banksman.workflows.builtin.results import check, reply_of

TEST_COMMAND = """\
if [ -f package.json ] || ls tests/*.test.mjs >/dev/null 2>&1; then node --test --test-reporter=tap
elif python3 -c 'import pytest' 2>/dev/null; then python3 -m pytest -q -rA --tb=short
else python3 -m unittest discover -v
fi"""
"""Runs the tests of a Python or JavaScript project with a test runner that the sandbox has."""

_PYTEST = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) ([^\s(].*)$", re.MULTILINE)
_UNITTEST = re.compile(r"^(\S.*?) \.\.\. (ok|FAIL|ERROR|skipped.*)$", re.MULTILINE)
_TAP = re.compile(r"^\s*(ok|not ok) \d+ - (.*)$", re.MULTILINE)

REFACTOR_PROMPT = """\
You refactor code. Read the component and its tests first, and search for its users. Change only what the \
goal requires, keep its behaviour and its public interface, and write whole files. Run the tests if there \
are any. End with a short list of what you changed and why."""


@workflow(title="Search code", category="code", timeout_s=300.0, positional=("query", "path"))
async def search_code(
    context: WorkflowContext,
    query: Annotated[
        str,
        Field(
            description="The text to find in a line, or a regular expression.", min_length=1, max_length=2000
        ),
    ],
    path: Annotated[str, Field(description="The file or folder to search; empty for everything.")] = "",
    glob: Annotated[str, Field(description="Only files whose names match, for example *.py.")] = "",
    regex: Annotated[bool, Field(description="Whether the query is a regular expression.")] = False,
    case_sensitive: Annotated[bool, Field(description="Whether the search is case-sensitive.")] = False,
) -> str:
    """Search the files of the workspace, and list the lines that match."""
    places = {name: value for name, value in (("path", path), ("glob", glob)) if value}
    arguments: JsonObject = {"query": query, "regex": regex, "case_sensitive": case_sensitive, **places}
    found = await context.tool("search_code", arguments, step="search")
    check(found, "The search failed")
    matches = cast(list[dict[str, JsonValue]], found.content.get("matches") or [])
    if not matches:
        return f"Nothing matches `{query}`."
    rows = [(match.get("path"), match.get("line"), match.get("text")) for match in matches]
    context.table(("file", "line", "text"), rows)
    more = ", and there are more" if found.content.get("truncated") else ""
    return f"{len(matches)} lines match `{query}`{more}."


@workflow(title="Run tests", category="code", timeout_s=1200.0, positional=("folder",))
async def run_tests(
    context: WorkflowContext,
    folder: Annotated[str, Field(description="The folder of the project.")] = ".",
    command: Annotated[
        str,
        Field(description="The command that runs the tests; empty for pytest, unittest or node."),
    ] = "",
) -> str:
    """Run the tests of a project in the workspace, and show their results as a table."""
    script = f"cd -- {shlex.quote(folder)} && {{\n{command or TEST_COMMAND}\n}}"
    done = await context.tool("bash", {"command": script}, step="run")
    if done.is_error and "exit_code" not in done.content:
        check(done, "The tests could not be run")
    output = f"{done.content.get('stdout', '')}\n{done.content.get('stderr', '')}"
    results = read_results(output)
    if results:
        context.table(("test", "result"), results)
    else:
        context.text(f"```\n{output.strip()[-4_000:]}\n```")
    return _verdict([result for _, result in results], done.content.get("exit_code"))


@workflow(title="Refactor component", category="code", timeout_s=3600.0, positional=("path", "goal"))
async def refactor_component(
    context: WorkflowContext,
    path: Annotated[str, Field(description="The file or folder."), hint("file")],
    goal: Annotated[
        str,
        Field(description="What the agent should improve.", min_length=3, max_length=4000),
        hint("multiline"),
    ],
) -> str:
    """Let an agent refactor a file or folder of the workspace; each change waits for your approval."""
    if path.endswith("/"):
        looked = await context.tool("search_code", {"query": ".", "regex": True, "path": path}, step="look")
    else:
        looked = await context.tool("read_file", {"path": path}, step="look")
    check(looked, f"{path} cannot be read")
    result = await context.run(
        f"Refactor `{path}`. Goal: {goal}", step="refactor", system_prompt=REFACTOR_PROMPT
    )
    return reply_of(result, "The agent")


def _verdict(results: list[str], code: JsonValue) -> str:
    if not results:
        # unittest exits with 0 if it finds no tests, and a user's command may print its results in another
        # format.
        return f"The output contains no test results: exit code {code}."
    failed = sum(result not in ("passed", "skipped") for result in results)
    verdict = "All tests passed" if code == 0 else f"{failed or 'Some'} tests failed"
    return f"{verdict}: {len(results)} results, exit code {code}."


def read_results(output: str) -> list[tuple[str, str]]:
    """Return the tests that an output of pytest, unittest or TAP names, each with its result."""
    words = {"ok": "passed", "FAIL": "failed", "not ok": "failed"}
    found = [(name, result.lower()) for result, name in _PYTEST.findall(output)]
    found += [(name, words.get(result, result.lower())) for name, result in _UNITTEST.findall(output)]
    if not found:
        found = [(name, words[result]) for result, name in _TAP.findall(output)]
    return [(name, result.partition(" ")[0]) for name, result in found]
