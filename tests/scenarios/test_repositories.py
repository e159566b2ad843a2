"""Clone a repository, find the failing test, edit, run it, read the log, commit, show the patch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from banksman import sdk
from tests.scenarios.conftest import Play
from tests.scenarios.test_assistants import TOOLS_ON, created
from tests.scenarios.test_workspace_tools import use
from tests.support.client import Client
from tests.support.git_server import git, new_repository, serving_git
from tests.support.scripted_models import ScriptedReply

AUTO = [{"action": "auto"}]
PASSWORD = "a-token-of-the-repository"
FILES = {
    "total.py": "def total(values):\n    return sum(values) - 1\n",
    "test_total.py": (
        "import unittest\nfrom total import total\n\n\nclass Total(unittest.TestCase):\n"
        "    def test_total(self):\n        self.assertEqual(total([1, 2]), 3)\n"
    ),
}
TESTS = "python3 -B -m unittest > test.log 2>&1; echo exit $?"
EDIT = {"old_text": "sum(values) - 1", "new_text": "sum(values)"}
STEPS = (
    use("bash", command=TESTS),
    use("search_code", query="def total"),
    use("edit_file", path="total.py", edits=[EDIT]),
    use("bash", command=TESTS),
    use("read_file", path="test.log"),
    use("bash", command="rm test.log; git commit -qam 'Fix the total' && git log --format=%s"),
    ScriptedReply(text="Fixed."),
)


async def test_a_failing_test_of_a_repository_is_fixed(
    client: Client, http: httpx.AsyncClient, nats: sdk.Client, play: Play, git_port: int, tmp_path: Path
) -> None:
    repository = new_repository(tmp_path / "project", FILES)
    await http.put("/context/secrets/GIT_TOKEN", json={"value": PASSWORD})
    assistant = await created(http, model=play(*STEPS), tools=TOOLS_ON, approval_policy=AUTO)
    with serving_git(repository, port=git_port, password=PASSWORD) as server:
        source = {"repository": server.url, "secret": "GIT_TOKEN"}
        conversation = await client.create(assistant=assistant, source=source)
        outcome = await client.run(conversation, "fix the test")
    assert outcome["status"] == "completed"
    results: list[dict[str, Any]] = [call["result"] for call in outcome["tool_calls"]]
    assert results[0]["stdout"] == "exit 1\n"
    assert results[3]["stdout"] == "exit 0\n"
    assert "OK" in results[4]["content"]
    assert results[5]["stdout"] == "Fix the total\nChange files\n"

    events = (await http.get(f"/context/conversations/{conversation}/events")).json()["items"]
    changed = [event["data"]["paths"] for event in events if event["type"] == "workspace.changed"]
    assert {"path": "test.log", "change": "created"} in changed[0]
    assert {"path": ".git", "change": "modified"} in changed[-1]
    assert PASSWORD not in str(events)

    diff = await nats.diff(conversation)
    assert [(file.path, file.change) for file in diff.files] == [
        (".git", "modified"),
        ("total.py", "modified"),
    ]
    patch = await http.get(f"/context/conversations/{conversation}/patch")
    assert patch.text == diff.patch
    (tmp_path / "the.patch").write_text(patch.text)
    git(repository, "apply", str(tmp_path / "the.patch"))
    assert (repository / "total.py").read_text() == "def total(values):\n    return sum(values)\n"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"branch": "missing"}, "the repository has no branch 'missing'"),
        ({"secret": "NOT_SET"}, "the secret 'NOT_SET' is not set"),
    ],
)
async def test_the_first_call_reports_why_a_repository_cannot_be_fetched(
    client: Client,
    http: httpx.AsyncClient,
    play: Play,
    git_port: int,
    tmp_path: Path,
    source: dict[str, str],
    reason: str,
) -> None:
    assistant = await created(
        http,
        model=play(use("bash", command="ls"), ScriptedReply(text="ok")),
        tools=TOOLS_ON,
        approval_policy=AUTO,
    )
    with serving_git(new_repository(tmp_path / "project", FILES), port=git_port) as server:
        given = {"repository": server.url, **source}
        conversation = await client.create(assistant=assistant, source=given)
        outcome = await client.run(conversation, "go")
    result = outcome["tool_calls"][0]["result"]
    assert (result["success"], result["error_kind"]) == (False, "unavailable")
    assert reason in result["error"]
