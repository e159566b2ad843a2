"""The workflows of the platform, each with a real sandbox (R22, R112)."""

from __future__ import annotations

import re
from typing import Any

import httpx

from tests.scenarios.conftest import Play, model_requests
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel

PYTHON_TEST = """\
import unittest

class Sums(unittest.TestCase):
    def test_one(self): self.assertEqual(1 + 1, 2)
    def test_two(self): self.assertEqual(1 + 1, 3)
"""


async def upload(http: httpx.AsyncClient, conversation: str, path: str, content: str) -> None:
    url = f"/context/conversations/{conversation}/files/{path}"
    assert (await http.put(url, content=content.encode())).is_success


async def ended(
    client: Client,
    http: httpx.AsyncClient,
    name: str,
    conversation: str,
    *,
    approve: int = 0,
    **parameters: Any,
) -> dict[str, Any]:
    """Start a workflow in a conversation, approve its requests, and return its run."""
    body = {"parameters": parameters, "conversation_id": conversation}
    response = await http.post(f"/workflows/{name}/runs", json=body)
    assert response.status_code == 202, response.text
    run = response.json()
    await client.request("subscribe", conversation_id=run["conversation_id"], after_seq=0, detail="full")
    for _ in range(approve):
        await client.approve(run["run_id"])
    await client.finished(run["run_id"])
    return (await http.get(f"/context/runs/{run['run_id']}")).json()


async def test_search_code_lists_the_lines_that_match(client: Client, http: httpx.AsyncClient) -> None:
    conversation = await client.create()
    await upload(http, conversation, "a.py", "x = 1\nneedle = 2\n")

    found = await ended(client, http, "search_code", conversation, query="needle")
    none = await ended(client, http, "search_code", conversation, query="nothing like it")

    assert found["status"] == "completed", found
    assert "1 lines match" in found["content"] and "| a.py | 2 | needle = 2 |" in found["content"]
    assert none["content"].startswith("Nothing matches")


async def test_run_tests_shows_a_table_of_results(client: Client, http: httpx.AsyncClient) -> None:
    conversation = await client.create()
    await upload(http, conversation, "test_sums.py", PYTHON_TEST)

    run = await ended(client, http, "run_tests", conversation, approve=1, command="python3 -m unittest -v")

    assert run["status"] == "completed", run
    assert "1 tests failed: 2 results, exit code 1" in run["content"]
    assert re.search(r"\| test_one .*\| passed \|", run["content"])
    assert re.search(r"\| test_two .*\| failed \|", run["content"])


async def test_run_tests_reports_no_success_without_test_results(
    client: Client, http: httpx.AsyncClient
) -> None:
    conversation = await client.create()
    await upload(http, conversation, "notes.txt", "no test")

    run = await ended(client, http, "run_tests", conversation, approve=1)

    assert run["status"] == "completed", run
    assert run["content"].startswith("The output contains no test results: exit code")


async def test_summarize_conversation_reads_the_conversation(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    name = play(ScriptedReply(text="Forty-two."), ScriptedReply(text="They wanted a number."), by="count")
    conversation = await client.create(name)
    await client.run(conversation, "What is the answer?")

    run = await ended(client, http, "summarize_conversation", conversation)

    assert (run["status"], run["content"]) == ("completed", "They wanted a number.")
    asked = model_requests(model, name)[-1]["messages"][-1]["content"]
    assert "User: What is the answer?" in asked and "Assistant: Forty-two." in asked


async def test_demo_model_summarises_without_a_key(client: Client, http: httpx.AsyncClient) -> None:
    conversation = await client.create("openai:demo")
    await client.run(conversation, "hello there")

    run = await ended(client, http, "summarize_conversation", conversation)

    assert run["status"] == "completed"
    assert "- User: hello there" in run["content"]


async def test_research_report_cites_the_pages_that_it_fetched(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel, json_api: str
) -> None:
    """The user names the hosts in the form, so no fetch needs approval; the report is a file too."""
    name = play(ScriptedReply(text="It is so [1]."))
    conversation = await client.create(name)
    urls = [f"http://{json_api}/changes/", f"http://{json_api}/missing-page"]

    run = await ended(
        client,
        http,
        "research_report",
        conversation,
        approve=1,
        question="What changed?",
        urls=urls,
        file="report.md",
    )
    file = await http.get(f"/context/conversations/{conversation}/files/report.md")

    assert run["status"] == "completed", run
    assert "It is so [1]." in run["content"] and f"| [1] | {urls[0]} |" in run["content"]
    assert f"- [1] {urls[0]}" in file.text
    asked = model_requests(model, name)[-1]["messages"][-1]["content"]
    assert "[1] http://" in asked


async def test_refactor_component_writes_after_an_approval_in_the_same_workspace(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    write = ScriptedCall(name="write_file", arguments={"path": "a.py", "content": "x = 2\n"})
    conversation = await client.create(
        play(ScriptedReply(tool_calls=(write,)), ScriptedReply(text="Renamed it."))
    )
    await upload(http, conversation, "a.py", "x = 1\n")
    body = {"parameters": {"path": "a.py", "goal": "Better names."}, "conversation_id": conversation}

    run = (await http.post("/workflows/refactor_component/runs", json=body)).json()
    await client.request("subscribe", conversation_id=run["conversation_id"], after_seq=0)
    link = (await client.event("workflow.linked", conversation_id=run["conversation_id"]))["data"]
    await client.request("subscribe", conversation_id=link["workflow_conversation_id"], after_seq=0)
    await client.approve(link["workflow_run_id"])
    outcome = await client.finished(run["run_id"])

    assert (outcome["status"], outcome["content"]) == ("completed", "Renamed it.")
    file = await http.get(f"/context/conversations/{conversation}/files/a.py")
    assert file.text == "x = 2\n"
