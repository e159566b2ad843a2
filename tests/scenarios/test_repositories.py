"""From the clone of a repository to a patch: a failing test is found, fixed, run and committed."""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from banksman import sdk
from tests.scenarios.conftest import Play, nats_url, operator_seed
from tests.scenarios.test_assistants import TOOLS_ON, created
from tests.scenarios.test_workspace_tools import use
from tests.support.client import Client
from tests.support.commands import run_command
from tests.support.docker_engine import DockerEngine
from tests.support.git_server import git, new_repository, serving_git
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.support.web_server import web_server
from tests.tool_runner.workspaces.test_archive_sources import tarred, with_modes

AUTO = [{"action": "auto", "tool": "bash", "arguments": {"background": "true"}}, {"action": "auto"}]
PASSWORD = "a-token-of-the-repository"
FILES = {
    "total.py": "def total(values):\n    return sum(values) - 1\n",
    "test_total.py": (
        "import unittest\nfrom total import total\n\n\nclass Total(unittest.TestCase):\n"
        "    def test_total(self):\n        self.assertEqual(total([1, 2]), 3)\n"
    ),
}
TESTS = "python3 -B -m unittest -v 2>&1 | tee test.log; exit ${PIPESTATUS[0]}"
EDIT = {"old_text": "sum(values) - 1", "new_text": "sum(values)"}
REPAIR = (
    use("bash", command=TESTS),
    use("search_code", query="def total"),
    use("edit_file", path="total.py", edits=[EDIT]),
    use("bash", command=TESTS, background=True),
    ScriptedReply(text="The tests run."),
)


def commit_after(process: str) -> tuple[ScriptedReply, ...]:
    return (
        use("process_output", process=process, offset=0, until="", wait_s=60),
        use("read_file", path="test.log"),
        use("bash", command="rm test.log; git commit -qam 'Fix the total' && git log --format='%s (%an)'"),
        ScriptedReply(text="Fixed."),
    )


@pytest.fixture(scope="module")
def in_containers(
    model: ScriptedModel,
    git_port: int,
    docker_engine: DockerEngine,
    image_with_programs: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[System]:
    """A system whose commands run in containers."""
    settings = {
        "BANKSMAN_LOCAL__AGENTS": "1",
        "BANKSMAN_TOOL_RUNNER__SANDBOX": "docker",
        "BANKSMAN_TOOL_RUNNER__DOCKER__IMAGE": image_with_programs,
        "BANKSMAN_TOOL_RUNNER__EGRESS__ALLOW_PRIVATE_ADDRESSES": json.dumps([f"127.0.0.1:{git_port}"]),
        "BANKSMAN_TOOL_RUNNER__EGRESS__REPOSITORIES": json.dumps({"*": [f"http://127.0.0.1:{git_port}/*"]}),
        "DOCKER_HOST": docker_engine.host,
    }
    running = System(tmp_path_factory.mktemp("containers"), model, settings)
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.mark.parametrize("name", ["system", "in_containers"])
async def test_a_failing_test_of_a_repository_is_fixed(
    request: pytest.FixtureRequest, name: str, play: Play, git_port: int, tmp_path: Path
) -> None:
    system: System = request.getfixturevalue(name)
    repository = new_repository(tmp_path / "project", FILES)
    async with (
        Client.connected(system.url, timeout_s=WAIT_TIMEOUT_S) as client,
        httpx.AsyncClient(base_url=system.url, timeout=WAIT_TIMEOUT_S * 2) as http,
        sdk.connect(nats_url(system), "local", nkey_seed_file=operator_seed(system)) as nats,
    ):
        await http.put("/context/secrets/GIT_TOKEN", json={"value": PASSWORD})
        assistant = await created(http, model=play(*REPAIR), tools=TOOLS_ON, approval_policy=AUTO)
        with serving_git(repository, port=git_port, password=PASSWORD) as server:
            source = {"repository": server.url, "secret": "GIT_TOKEN"}
            conversation = await client.create(assistant=assistant, source=source)
            outcome = await client.run(conversation, "fix the test")
        assert outcome["status"] == "completed", outcome
        results: list[dict[str, Any]] = [call["result"] for call in outcome["tool_calls"]]
        assert results[0]["exit_code"] == 1
        assert "test_total.Total.test_total" in results[0]["stdout"]
        process = results[3]["process"]

        play(*REPAIR, *commit_after(process))
        outcome = await client.run(conversation, "commit it when the tests pass")
        results = [call["result"] for call in outcome["tool_calls"]]
        assert (results[0]["status"], results[0]["exit_code"]) == ("ended", 0), results
        assert "Ran 1 test" in results[0]["output"]
        assert results[1]["content"].endswith("OK\n")
        assert results[2]["stdout"].startswith("Fix the total (") and "notice" not in results[2]

        events = (await http.get(f"/context/conversations/{conversation}/events")).json()["items"]
        changed = [event["data"]["paths"] for event in events if event["type"] == "workspace.changed"]
        assert {"path": "test.log", "change": "created"} in changed[0]
        assert {"path": ".git", "change": "modified"} in changed[-1]
        assert PASSWORD not in str(events)

        diff = await nats.diff(conversation)
        patch = await http.get(f"/context/conversations/{conversation}/patch")
    assert [(file.path, file.change) for file in diff.files] == [
        (".git", "modified"),
        ("total.py", "modified"),
    ]
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


async def test_the_command_line_starts_a_workspace_from_an_archive(
    system: System, http: httpx.AsyncClient, play: Play, git_port: int
) -> None:
    sent: list[str | None] = []

    async def archive(request: web.Request) -> web.Response:
        sent.append(request.headers.get("Authorization"))
        return web.Response(body=tarred({f"project-1/{name}": text for name, text in FILES.items()}))

    app = web.Application()
    app.router.add_get("/project-1.tar.gz", archive)
    await http.put("/context/secrets/ARCHIVE_TOKEN", json={"value": PASSWORD})
    model = play(use("bash", command="cat total.py"), ScriptedReply(text="seen"))
    async with web_server(app, git_port):
        options = (
            "--repository",
            f"http://127.0.0.1:{git_port}/project-1.tar.gz",
            "--secret",
            "ARCHIVE_TOKEN",
        )
        done = await asyncio.to_thread(
            functools.partial(
                run_command,
                *("run", "look", "--model", model, "--approve", "--json", *options),
                environment={"PATH": os.environ["PATH"], "BANKSMAN_GATEWAY_URL": system.url},
            )
        )
    assert done.returncode == 0, done.stderr
    assert "sum(values) - 1" in done.stdout and PASSWORD not in done.stdout
    assert len(sent) == 1 and str(sent[0]).startswith("Basic ")


async def test_a_workspace_starts_from_an_uploaded_archive(http: httpx.AsyncClient, play: Play) -> None:
    """Its programs stay executable, its files are no changes, and it must be the only file."""
    model = play(use("bash", command="./run; ls"), ScriptedReply(text="seen"))
    assistant = await created(http, model=model, tools=TOOLS_ON, approval_policy=[{"action": "auto"}])
    made = await http.post("/context/conversations", json={"assistant": assistant})
    path = f"/context/conversations/{made.json()['conversation_id']}"
    data = with_modes({"project/run": 0o100755, "project/read": 0o100644})

    async def unpack(name: str) -> httpx.Response:
        return await http.post(f"{path}/unpack", json={"path": name})

    missing = await unpack("-a: b.zip")
    await http.put(f"{path}/files/none.zip", content=b"<html>")
    wrong = await unpack("none.zip")
    kept = [one["path"] for one in (await http.get(f"{path}/files")).json()["items"]]
    await http.delete(f"{path}/files/none.zip")
    await http.put(f"{path}/files/-a: b.zip", content=data)
    unpacked = await unpack("-a: b.zip")
    changes = (await http.get(f"{path}/diff")).json()
    await http.put(f"{path}/files/more.zip", content=data)
    refused = await unpack("more.zip")
    sent = await http.post(f"{path}/runs", json={"content": "Look."})
    run = (await http.get(f"/context/runs/{sent.json()['run_id']}", params={"wait_s": 30})).json()

    assert (missing.status_code, wrong.status_code, kept) == (404, 400, ["none.zip"]), missing.text
    assert "it was not unpacked" in wrong.json()["error"]["message"]
    assert (unpacked.status_code, changes["files"]) == (204, []), unpacked.text
    assert (refused.status_code, "other files" in refused.text) == (400, True)
    assert run["tool_calls"][0]["result"]["stdout"] == "ran\nmore.zip\nread\nrun\n"
