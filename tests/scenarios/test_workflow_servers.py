"""Workflows that other processes register and serve: steps, input, approval, agent runs (R22, R41, R112)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from banksman import sdk
from banksman.bus.errors import RemoteError
from banksman.contracts.errors import ErrorCode
from banksman.contracts.ids import new_id
from banksman.sdk import Workflow, WorkflowContext, WorkflowServer, workflow
from tests.scenarios.conftest import Play
from tests.scenarios.test_tool_registry import local, process
from tests.support.client import Client
from tests.support.paths import ROOT
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedReply
from tests.support.system import System
from tests.support.timeouts import WAIT_TIMEOUT_S


@workflow(category="release", positional=("version",))
async def release(context: WorkflowContext, version: str) -> str:
    """Write release notes that a user words.

    Args:
        context: The run.
        version: Such as 1.2.3.
    """
    context.progress(1, 2, "Asking for the notes")
    notes = await context.input(f"Notes of {version}?", {"type": "string", "minLength": 3}, step="notes")
    context.progress(2, 2, "Writing them")
    written = await context.tool("write_file", {"path": "NOTES.md", "content": str(notes)}, step="write")
    context.table(["file", "ok"], [["NOTES.md", not written.is_error]], title="Files")
    context.file("NOTES.md")
    return f"Released {version} by {context.user}."


def named(name: str, one: Workflow = release) -> Workflow:
    definition = one.definition.model_copy(update={"name": name})
    return Workflow(definition, one.function, one.parameters)


@asynccontextmanager
async def served(system: System, *workflows: Workflow, name: str) -> AsyncGenerator[WorkflowServer]:
    async with WorkflowServer(name, workflows, nats=local(system)) as server:
        yield server


@pytest.fixture
def name() -> str:
    return new_id("release-")


async def started(http: httpx.AsyncClient, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    response = await http.post(f"/workflows/{name}/runs", json={"parameters": parameters})
    assert response.status_code == 202, response.text
    return response.json()


async def wanted(http: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    """Wait until a run requests a value, and return the request."""

    async def find() -> dict[str, Any] | None:
        items = (await http.get("/context/inputs")).json()["items"]
        return next((item for item in items if item["run_id"] == run_id), None)

    return await eventually(find)


async def test_a_workflow_of_another_process_runs_with_input_and_approval_over_restarts(
    system: System, http: httpx.AsyncClient, client: Client, name: str
) -> None:
    """No process of the workflow runs while a user is asked, and the workflows service is killed as well."""
    async with served(system, named(name), name=name):
        listed = (await http.get(f"/workflows/{name}")).json()
        run = await started(http, name, {"version": "1.2.3"})
        request = await wanted(http, run["run_id"])
    for pid in system.service_pids("workflows"):
        os.kill(pid, signal.SIGKILL)
    status = (await http.get(f"/context/runs/{run['run_id']}")).json()["status"]

    refused = await http.post(f"/context/inputs/{request['request_id']}", json={"value": "x"})
    first = await http.post(f"/context/inputs/{request['request_id']}", json={"value": "All new."})
    second = await http.post(f"/context/inputs/{request['request_id']}", json={"value": "Other."})
    async with served(system, named(name), name=name):
        await client.request("subscribe", conversation_id=run["conversation_id"], after_seq=0, detail="full")
        await client.approve(run["run_id"])
        outcome = await client.finished(run["run_id"])

    assert (listed["server"], listed["category"]) == (name, "release")
    assert (status, request["message"]) == ("awaiting_input", "Notes of 1.2.3?")
    assert (refused.status_code, first.status_code, second.status_code) == (400, 200, 409)
    assert (first.json()["outcome"], second.json()["already_resolved"]) == ("provided", True)
    assert outcome["status"] == "completed"
    assert "Released 1.2.3 by" in outcome["content"] and "| NOTES.md | True |" in outcome["content"]
    events = client.events(run["conversation_id"])
    outputs = [e["data"]["output"]["kind"] for e in events if e["type"] == "workflow.output"]
    assert outputs == ["table", "file"]
    progress = [e["data"]["message"] for e in events if e["type"] == "workflow.progress"]
    assert progress == ["Asking for the notes", "Writing them"]
    requested = [e["data"]["name"] for e in events if e["type"] == "tool_call.requested"]
    assert requested == ["request_input", "write_file"]
    assert [c["params"].get("content") for c in outcome["tool_calls"]] == [None, "All new."]


@pytest.mark.parametrize("over", ["websocket", "nats"])
async def test_a_requested_value_is_provided_over_every_api(
    system: System, http: httpx.AsyncClient, client: Client, nats: sdk.Client, name: str, over: str
) -> None:
    @workflow(name=name)
    async def echo(context: WorkflowContext) -> str:
        """Return the value that the user provides."""
        return str(await context.input("Which?", {"type": "integer"}, step="which"))

    async with served(system, echo, name=name):
        run = await started(http, name, {})
        request = await wanted(http, run["run_id"])
        subscribed = await client.request("subscribe", conversation_id=run["conversation_id"], after_seq=0)
        if over == "websocket":
            ack = await client.request("input.reply", request_id=request["request_id"], value=7)
            won = ack["type"] == "ack" and not ack["already_resolved"]
        else:
            won = not (await nats.provide(request["request_id"], 7)).already_resolved
        outcome = await client.finished(run["run_id"])

    assert won
    assert [one["request_id"] for one in subscribed["pending_inputs"]] == [request["request_id"]]
    assert (outcome["status"], outcome["content"]) == ("completed", "7")
    resolved = await client.event("input.resolved", conversation_id=run["conversation_id"])
    assert resolved["data"]["value"] == 7


async def test_a_cancelled_workflow_withdraws_its_request_for_a_value(
    system: System, http: httpx.AsyncClient, client: Client, name: str
) -> None:
    async with served(system, named(name), name=name):
        run = await started(http, name, {"version": "1"})
        request = await wanted(http, run["run_id"])
        await client.request("subscribe", conversation_id=run["conversation_id"], after_seq=0)
        await client.request("run.cancel", run_id=run["run_id"])
        outcome = await client.finished(run["run_id"])
        late = await http.post(f"/context/inputs/{request['request_id']}", json={"value": "late"})

    assert outcome["status"] == "cancelled"
    assert (late.status_code, late.json()["outcome"]) == (409, "cancelled")
    assert request["request_id"] not in str((await http.get("/context/inputs")).json())


async def test_a_request_for_a_value_expires(
    system: System, http: httpx.AsyncClient, client: Client, name: str
) -> None:
    @workflow(name=name)
    async def impatient(context: WorkflowContext) -> str:
        """Wait a second for the user."""
        await context.input("Quick?", step="quick", expires_s=1.0)
        return "never"

    async with served(system, impatient, name=name):
        run = await started(http, name, {})
        await client.request("subscribe", conversation_id=run["conversation_id"], after_seq=0)
        outcome = await client.finished(run["run_id"])

    assert outcome["status"] == "failed"
    assert "Nobody provided the value in time" in outcome["content"]


async def test_two_processes_of_a_server_share_its_runs_and_another_server_is_refused(
    system: System, http: httpx.AsyncClient, name: str
) -> None:
    both = asyncio.Barrier(2)

    def counting() -> Workflow:
        @workflow(name=name)
        async def together(context: WorkflowContext) -> str:
            """End when another process serves a run of it too."""
            await both.wait()
            return "together"

        return together

    async with served(system, counting(), name=name), served(system, counting(), name=name):
        with pytest.raises(RemoteError) as refused:
            async with served(system, counting(), name=f"{name}-2"):
                pass
        runs = [await started(http, name, {}) for _ in range(2)]
        ends = [
            (await http.get(f"/context/runs/{run['run_id']}", params={"wait_s": 30})).json() for run in runs
        ]

    assert refused.value.code == ErrorCode.CONFLICT
    assert [end["status"] for end in ends] == ["completed"] * 2


async def test_a_workflow_starts_an_agent_run_in_its_workspace_and_awaits_it(
    system: System, http: httpx.AsyncClient, client: Client, play: Play, name: str
) -> None:
    @workflow(name=name, title="Review a change")
    async def review(context: WorkflowContext) -> str:
        """Let a model review."""
        result = await context.run("Review it.", step="review", system_prompt="You review.", tools=())
        return f"The model said: {result.content['content']}"

    model = play(ScriptedReply(text="Looks good."))
    conversation = await client.create(model)
    async with served(system, review, name=name):
        response = await http.post(
            f"/workflows/{name}/runs", json={"conversation_id": conversation}, params={"wait_s": 30}
        )
    run = response.json()

    assert (run["status"], run["content"]) == ("completed", "The model said: Looks good.")
    events = (await http.get(f"/context/conversations/{run['conversation_id']}/events")).json()["items"]
    links = [event["data"] for event in events if event["type"] == "workflow.linked"]
    assert [link["workflow"] for link in links] == ["agent"]
    agent = (await http.get(f"/context/runs/{links[0]['workflow_run_id']}")).json()
    assert (agent["status"], agent["content"]) == ("completed", "Looks good.")
    where = links[0]["workflow_conversation_id"]
    opened = (await http.get(f"/context/conversations/{where}")).json()
    assert opened["title"] == "Review a change: review"


@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_the_example_of_a_workflow_is_registered_and_completes(
    system: System, http: httpx.AsyncClient, client: Client, node_examples: Path, language: str
) -> None:
    """R112: with the SDK, and with the plain NATS client of another language."""
    if language == "python":
        name, command = "write_notes", (sys.executable, str(ROOT / "examples" / "release_workflow.py"))
    else:
        name, command = "write_release_notes", ("node", str(node_examples / "release_workflow.mjs"))
    async with process(system, *command) as running:

        async def is_listed() -> bool:
            return (await http.get(f"/workflows/{name}")).status_code == 200

        await eventually(is_listed)
        run = await started(http, name, {"version": "1.2.3"})
        request = await wanted(http, run["run_id"])
        await http.post(f"/context/inputs/{request['request_id']}", json={"value": "Everything."})
        await client.request("subscribe", conversation_id=run["conversation_id"], after_seq=0)
        await client.approve(run["run_id"])
        outcome = await client.finished(run["run_id"])
        running.terminate()

    assert outcome["status"] == "completed", outcome
    assert "The notes of 1.2.3 are in the workspace." in outcome["content"]
    file = await http.get(f"/context/conversations/{run['conversation_id']}/files/NOTES.md")
    assert file.text == "# 1.2.3\n\nEverything.\n"


async def test_a_cancel_aborts_the_function_of_the_example_in_javascript(
    system: System, http: httpx.AsyncClient, node_examples: Path
) -> None:
    """R22: the function may stop a request that it makes itself."""
    script = Path(__file__).parent / "waiting_workflow.mjs"
    command = ("node", str(script), str(node_examples / "workflow_server.mjs"))
    async with process(system, *command, stdout=asyncio.subprocess.PIPE) as running:
        await printed(running, "serving")
        run = await started(http, "wait_for_cancel", {})
        await printed(running, "computing")
        cancelled = await http.post(f"/context/runs/{run['run_id']}/cancel")
        await printed(running, "aborted")
        ended = (await http.get(f"/context/runs/{run['run_id']}", params={"wait_s": 30})).json()

    assert cancelled.is_success, cancelled.text
    assert ended["status"] == "cancelled"


async def printed(running: asyncio.subprocess.Process, word: str) -> None:
    """Wait until a process prints a line that begins with the word."""
    assert running.stdout is not None
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        async for line in running.stdout:
            if line.startswith(word.encode()):
                return
    raise AssertionError(f"the process ended before it printed {word!r}")


async def test_workflows_of_two_languages_start_in_every_way_and_get_their_values_two_restarts_later(
    system: System, http: httpx.AsyncClient, node_examples: Path
) -> None:
    """R22, R112: by form, command, plain language and schedule; the processes beside the system stay."""
    python = (sys.executable, str(ROOT / "examples" / "release_workflow.py"))
    javascript = ("node", str(node_examples / "release_workflow.mjs"))
    async with process(system, *python), process(system, *javascript):
        await eventually(lambda: are_listed(http, "write_notes", "write_release_notes"))
        runs = [
            await started(http, "write_notes", {"version": "1.0"}),
            await by_text(http, "/write_release_notes 2.0"),
            await by_text(http, "Please write the release notes of version 3.0", model="openai:demo"),
            await by_schedule(http, "write_notes", "4.0"),
            await by_schedule(http, "write_release_notes", "5.0"),
        ]
        requests = [await wanted(http, run["run_id"]) for run in runs]
        for _ in range(2):
            system.stop()
            system.start()
        async with httpx.AsyncClient(base_url=system.url, timeout=WAIT_TIMEOUT_S) as again:
            for request in requests:
                provided = await again.post(
                    f"/context/inputs/{request['request_id']}", json={"value": "All new."}
                )
                assert provided.status_code == 200, provided.text
            ends = [await approved(again, run) for run in runs]

    assert [request["message"] for request in requests] == [f"What is new in {n}.0?" for n in range(1, 6)]
    assert ends == [("completed", f"# {n}.0\n\nAll new.\n") for n in range(1, 6)]


async def are_listed(http: httpx.AsyncClient, *names: str) -> bool:
    return all([(await http.get(f"/workflows/{name}")).status_code == 200 for name in names])


async def by_text(http: httpx.AsyncClient, text: str, **more: str) -> dict[str, Any]:
    """Start a workflow by a text, as a user who confirms the filled form."""
    form = (await http.post("/workflows/parse", json={"text": text, **more})).json()
    assert not form["problems"], form
    return await started(http, form["workflow"]["name"], form["parameters"])


async def by_schedule(http: httpx.AsyncClient, name: str, version: str) -> dict[str, Any]:
    start = {"type": "workflow", "workflow": name, "parameters": {"version": version}}
    at = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    made = (await http.post("/context/schedules", json={"start": start, "at": at})).json()

    async def run() -> dict[str, Any] | None:
        found: dict[str, Any] | None = (await http.get(f"/context/schedules/{made['id']}")).json()["last_run"]
        return found

    return await eventually(run)


async def approved(http: httpx.AsyncClient, run: dict[str, Any]) -> tuple[str, str]:
    """Approve the write of a run; return its status and the file."""

    async def request() -> str | None:
        items = (await http.get("/context/approvals")).json()["items"]
        return next((item["approval_id"] for item in items if item["run_id"] == run["run_id"]), None)

    await http.post(f"/context/approvals/{await eventually(request)}", json={"all": "approve"})
    ended = (await http.get(f"/context/runs/{run['run_id']}", params={"wait_s": 30})).json()
    file = await http.get(f"/context/conversations/{run['conversation_id']}/files/NOTES.md")
    return ended["status"], file.text
