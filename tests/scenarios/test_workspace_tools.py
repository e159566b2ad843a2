"""The four workspace tools, end to end (spec 003)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.scenarios.conftest import Play
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel


def use(name: str, **arguments: Any) -> ScriptedReply:
    """Return a reply with one call."""
    return ScriptedReply(tool_calls=(ScriptedCall(name=name, arguments=arguments),))


async def run_approved(client: Client, conversation: str, *, requests: int) -> dict[str, Any]:
    """Wait for the end of a run, approving its requests."""
    run_id = await client.chat(conversation, "go")
    for _ in range(requests):
        approval_request = await client.approval_request(run_id)
        await client.request("approval.reply", approval_id=approval_request["approval_id"], all="approve")
        await client.resolved(approval_request["approval_id"])
    return await client.finished(run_id)


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_the_four_workspace_tools_are_offered_in_the_vendors_schema(
    client: Client, play: Play, model: ScriptedModel, vendor: str
) -> None:
    """R62, R63, R85, R87: name, description and input schema reach the model at the start."""
    name = play(ScriptedReply(text="ok"), vendor=vendor)
    conversation = await client.create(name)
    await client.run(conversation, "hi")

    offered = model.requests(name.rpartition("/")[2])[0]["body"]["tools"]
    tools = offered if vendor == "anthropic" else [entry["function"] for entry in offered]
    schema = "input_schema" if vendor == "anthropic" else "parameters"

    required = {tool["name"]: set(tool[schema].get("required", ())) for tool in tools}
    four = {
        "bash": {"command"},
        "read_file": {"path"},
        "write_file": {"path", "content"},
        "web_fetch": {"url"},
    }
    assert four.items() <= required.items()
    assert all(tool["description"] and tool[schema]["type"] == "object" for tool in tools)
    assert all(tool[schema]["properties"].keys() >= required[tool["name"]] for tool in tools)


async def test_bash_reports_output_errors_and_exit_code(client: Client, play: Play) -> None:
    """R64, R65: in the workspace, with stdout, stderr and the exit code."""
    conversation = await client.create(
        play(use("bash", command="pwd; echo oops >&2; exit 3"), ScriptedReply(text="ok"))
    )

    outcome = await run_approved(client, conversation, requests=1)

    result = outcome["tool_calls"][0]["result"]
    assert (result["stdout"], result["stderr"], result["exit_code"]) == ("/workspace\n", "oops\n", 3)


async def test_long_output_is_cut_to_ten_thousand_characters(client: Client, play: Play) -> None:
    """R64: the result has the head, the tail and the total."""
    conversation = await client.create(play(use("bash", command="seq 1 20000"), ScriptedReply(text="ok")))

    outcome = await run_approved(client, conversation, requests=1)

    result = outcome["tool_calls"][0]["result"]
    assert len(result["stdout"]) <= 10_000
    assert result["truncated"] is True
    assert result["stdout"].startswith("1\n2\n") and result["stdout"].rstrip().endswith("20000")


async def test_a_file_written_by_one_call_is_readable_and_executable_by_the_next(
    client: Client, play: Play
) -> None:
    """R66, R67, R70, R76: read, bash and write share one workspace; a skill is a script run by bash."""
    skill = "print('efficiency: ' + open('data/in.txt').read())"
    conversation = await client.create(
        play(
            use("write_file", path="data/in.txt", content="42"),
            use("write_file", path=".claude/skills/report.py", content=skill),
            use("bash", command="python3 .claude/skills/report.py > report.md"),
            use("read_file", path="report.md"),
            ScriptedReply(text="Efficiency is 42."),
        )
    )

    outcome = await run_approved(client, conversation, requests=3)

    assert outcome["content"] == "Efficiency is 42."
    assert outcome["tool_calls"][-1]["result"]["content"] == "efficiency: 42\n"


async def test_overwriting_is_confirmed(client: Client, play: Play) -> None:
    """R71: the second write of a path replaces the first and reports it."""
    conversation = await client.create(
        play(
            use("write_file", path="a.txt", content="one"),
            use("write_file", path="a.txt", content="two"),
            use("read_file", path="a.txt"),
            ScriptedReply(text="ok"),
        )
    )

    outcome = await run_approved(client, conversation, requests=2)

    first, second, read = (entry["result"] for entry in outcome["tool_calls"])
    assert (first["created"], second["created"], read["content"]) == (True, False, "two")


async def test_a_missing_file_is_an_error_result(client: Client, play: Play) -> None:
    """R68, R106: the error is that call's result and the loop continues."""
    conversation = await client.create(
        play(use("read_file", path="nope.txt"), ScriptedReply(text="It is missing."))
    )

    outcome = await client.run(conversation, "go")

    assert outcome["content"] == "It is missing."
    assert outcome["tool_calls"][0]["result"]["success"] is False
    assert "nope.txt" in outcome["tool_calls"][0]["result"]["error"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "a/../../outside", "/workspace/../etc/passwd"])
async def test_no_path_leaves_the_workspace(client: Client, play: Play, path: str) -> None:
    """R69, R72: absolute and escaping paths are refused, for reading and for writing."""
    conversation = await client.create(
        play(use("read_file", path=path), use("write_file", path=path, content="x"), ScriptedReply(text="ok"))
    )

    outcome = await run_approved(client, conversation, requests=1)

    assert [entry["result"]["success"] for entry in outcome["tool_calls"]] == [False, False]


async def test_a_failed_fetch_reports_the_reason(client: Client, play: Play) -> None:
    """R73, R75: errors of a fetch contain their details; private addresses are refused."""
    conversation = await client.create(
        play(use("web_fetch", url="http://169.254.169.254/latest"), ScriptedReply(text="ok"))
    )

    outcome = await client.run(conversation, "fetch http://169.254.169.254/latest")

    assert outcome["tool_calls"][0]["result"]["success"] is False
    assert "169.254.169.254" in outcome["tool_calls"][0]["result"]["error"]


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_results_reach_the_model_in_the_vendors_format(
    client: Client, play: Play, model: ScriptedModel, vendor: str
) -> None:
    """R77, R92, R95: paired by the vendor's id, in the message after the call, with the tool's name."""
    call = ScriptedCall(name="read_file", arguments={"path": "x"}, id="toolu_given_by_the_vendor")
    name = play(ScriptedReply(text="Looking.", tool_calls=(call,)), ScriptedReply(text="ok"), vendor=vendor)
    conversation = await client.create(name)
    await client.run(conversation, "go")

    *_, request, response = model.requests(name.rpartition("/")[2])[1]["body"]["messages"]

    if vendor == "anthropic":
        assert request["content"][-1]["id"] == response["content"][0]["tool_use_id"] == call.id
        assert response["content"][0]["type"] == "tool_result"
    else:
        assert request["tool_calls"][0]["id"] == response["tool_call_id"] == call.id
        assert response["name"] == call.name
        assert json.loads(response["content"])["success"] is False


async def test_an_approver_sees_the_edits_that_run(client: Client, play: Play) -> None:
    """R12: what is replaced, and what replaces it; a remembered approval covers the path."""
    edits = [{"old_text": "one", "new_text": "1"}, {"old_text": "two", "new_text": "2"}]
    conversation = await client.create(
        play(
            use("write_file", path="a.txt", content="one\ntwo\n"),
            use("edit_file", path="a.txt", edits=edits),
            use("read_file", path="a.txt"),
            ScriptedReply(text="ok"),
        )
    )
    run_id = await client.chat(conversation, "go")
    first = await client.approval_request(run_id)
    await client.request("approval.reply", approval_id=first["approval_id"], all="approve")
    await client.resolved(first["approval_id"])
    approval_request = await client.approval_request(run_id)
    await client.request("approval.reply", approval_id=approval_request["approval_id"], all="approve")
    outcome = await client.finished(run_id)

    [item] = approval_request["items"]
    preview = {"kind": "diff", "path": "a.txt", "old": "one\n[…]\ntwo", "new": "1\n[…]\n2"}
    assert item["preview"].items() >= preview.items()
    assert item["covers"]["words"] == "every call of edit_file with the path a.txt, any content"
    assert outcome["tool_calls"][-1]["result"]["content"] == "1\n2\n"
