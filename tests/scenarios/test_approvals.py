"""Approval requests and decisions of users (R12, R13, R30, R34)."""

from __future__ import annotations

import json

import httpx
import pytest
from playwright.async_api import expect

from tests.scenarios.conftest import Play, model_requests
from tests.support.browser import WAIT_TIMEOUT_MS, opened, send_message
from tests.support.client import Client
from tests.support.polling import eventually
from tests.support.replies import bash
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System


async def test_a_call_that_needs_approval_waits_for_the_decision(client: Client, play: Play) -> None:
    """R12: the loop pauses, the approval request has the exact call, and an approval lets it run."""
    conversation = await client.create(
        play(bash("echo approved > mark; cat mark"), ScriptedReply(text="Done."))
    )
    run_id = await client.chat(conversation, "go")

    approval_request = await client.approval_request(run_id)
    assert [item["arguments"] for item in approval_request["items"]] == [
        {"command": "echo approved > mark; cat mark"}
    ]
    assert approval_request["items"][0]["preview"]["kind"] == "command"
    assert client.events(conversation, "tool_call.completed") == []

    await client.approve(run_id)
    outcome = await client.finished(run_id)

    assert outcome["tool_calls"][0]["result"]["stdout"] == "approved\n"
    [resolved] = client.events(conversation, "approval.resolved")
    assert (resolved["data"]["outcome"], resolved["data"]["by"]) == ("approved", "local")


async def test_a_rejection_ends_the_run_without_executing_later_calls(client: Client, play: Play) -> None:
    """R13: a rejection ends the loop, the message reports it, and no waiting call is executed."""
    conversation = await client.create(
        play(bash("touch one", "touch two"), ScriptedReply(text="unreachable"))
    )
    run_id = await client.chat(conversation, "go")
    approval_request = await client.approval_request(run_id)
    first, second = (item["tool_call_id"] for item in approval_request["items"])

    decisions = [
        {"tool_call_id": first, "decision": "reject", "reason": "not on my machine"},
        {"tool_call_id": second, "decision": "approve"},
    ]
    await client.request("approval.reply", approval_id=approval_request["approval_id"], decisions=decisions)
    outcome = await client.finished(run_id)

    assert outcome["status"] == "rejected"
    assert "not on my machine" in outcome["content"]
    kinds = [e["data"]["error_kind"] for e in client.events(conversation, "tool_call.completed")]
    assert sorted(kinds) == ["not_executed", "rejected"]


async def test_the_second_decision_gets_the_winning_one(system: System, client: Client, play: Play) -> None:
    """A second decision returns the winning one."""
    conversation = await client.create(play(bash("true"), ScriptedReply(text="ok")))
    run_id = await client.chat(conversation, "go")
    approval_request = await client.approval_request(run_id)

    first = await client.request("approval.reply", approval_id=approval_request["approval_id"], all="approve")
    second = await client.request("approval.reply", approval_id=approval_request["approval_id"], all="reject")

    assert (first["already_resolved"], second["already_resolved"]) == (False, True)
    assert (await client.finished(run_id))["status"] == "completed"


async def test_a_second_device_receives_the_approval_request_and_may_decide(
    system: System, client: Client, play: Play
) -> None:
    """R30: each new subscriber receives an open approval request again."""
    conversation = await client.create(play(bash("true"), ScriptedReply(text="ok")))
    run_id = await client.chat(conversation, "go")
    approval_request = await client.approval_request(run_id)

    async with Client.connected(system.url) as other:
        subscribed = await other.request("subscribe", conversation_id=conversation, after_seq=0)
        [pending] = subscribed["pending_approvals"]
        assert pending["approval_id"] == approval_request["approval_id"]
        await other.request("approval.reply", approval_id=pending["approval_id"], all="approve")

    assert (await client.finished(run_id))["status"] == "completed"


async def test_several_calls_of_one_reply_are_one_approval_request(client: Client, play: Play) -> None:
    """R34: one approval request contains all calls of an iteration, and one reply decides them."""
    conversation = await client.create(play(bash("echo 1", "echo 2", "echo 3"), ScriptedReply(text="ok")))
    run_id = await client.chat(conversation, "go")

    await client.approve(run_id)
    outcome = await client.finished(run_id)

    (requested,) = client.events(conversation, "approval.requested")
    assert [one["arguments"]["command"] for one in requested["data"]["items"]] == [
        "echo 1",
        "echo 2",
        "echo 3",
    ]
    assert [entry["result"]["stdout"] for entry in outcome["tool_calls"]] == ["1\n", "2\n", "3\n"]


async def test_the_next_call_needs_approval_after_a_decision_is_withdrawn(
    system: System, client: Client, play: Play
) -> None:
    """R13: the remembered decision is listed over HTTP with its user and calls, and withdrawn."""
    replies = [
        bash("echo 1"),
        bash("echo 1"),
        ScriptedReply(text="ok"),
        bash("echo 1"),
        ScriptedReply(text="ok"),
    ]
    conversation = await client.create(play(*replies))
    run_id = await client.chat(conversation, "go")
    request = await client.approval_request(run_id)
    await client.request(
        "approval.reply", approval_id=request["approval_id"], all="approve", remember="conversation"
    )
    await client.finished(run_id)
    assert len(client.events(conversation, "approval.requested")) == 1

    async with httpx.AsyncClient(base_url=system.url) as http:
        (listed,) = [
            one
            for one in (await http.get("/context/remembered")).json()["items"]
            if one["conversation_id"] == conversation
        ]
        withdrawn = await http.delete(f"/context/remembered/{listed['approval_id']}")
    again = await client.chat(conversation, "once more")
    assert (await client.approval_request(again))["approval_id"] != request["approval_id"]
    await client.approve(again)
    assert (await client.finished(again))["status"] == "completed"
    assert (listed["by"], listed["calls"][0]["arguments"]) == ("local", {"command": "echo 1"})
    assert withdrawn.status_code == 204


@pytest.mark.parametrize("choice", ["abort", "feedback"])
async def test_the_approver_chooses_what_a_rejection_does_to_the_run(
    client: Client, http: httpx.AsyncClient, play: Play, choice: str
) -> None:
    """R13: against the policy of the assistant; after feedback, the approved call runs."""
    name = play(bash("echo kept", "echo never"), ScriptedReply(text="Then only the first."))
    policy = {"abort": "feedback", "feedback": "abort"}[choice]
    tools = {"enabled": True, "on_reject": policy}
    created = await http.post("/context/assistants", json={"model": name, "tools": tools})
    conversation = await client.create(assistant=created.json()["id"])
    run_id = await client.chat(conversation, "go")
    request = await client.approval_request(run_id)
    first, second = (item["tool_call_id"] for item in request["items"])
    decisions = [
        {"tool_call_id": first, "decision": "approve"},
        {"tool_call_id": second, "decision": "reject"},
    ]
    reply = {"approval_id": request["approval_id"], "decisions": decisions, "on_reject": choice}
    await client.request("approval.reply", **reply)
    outcome = await client.finished(run_id)

    assert request.get("on_reject", "abort") == policy
    kinds = [call["result"].get("error_kind") for call in outcome["tool_calls"]]
    assert sorted(map(str, kinds)) == (
        ["not_executed", "rejected"] if choice == "abort" else ["None", "rejected"]
    )
    assert outcome["status"] == {"abort": "rejected", "feedback": "completed"}[choice]


async def test_a_tool_that_was_rejected_for_the_run_is_not_requested_again(
    client: Client, play: Play
) -> None:
    """R13: other commands too."""
    replies = [bash("echo 1"), bash("date; echo $HOME"), ScriptedReply(text="ok")]
    conversation = await client.create(play(*replies))
    run_id = await client.chat(conversation, "go")
    request = await client.approval_request(run_id)
    (item,) = request["items"]
    decision = {"tool_call_id": item["tool_call_id"], "decision": "reject", "covers": "tool"}
    reply = {"approval_id": request["approval_id"], "decisions": [decision], "on_reject": "feedback"}
    refused = await client.request("approval.reply", **reply)
    await client.request("approval.reply", **reply, remember="run")
    outcome = await client.finished(run_id)

    assert (refused["code"], "remember" in refused["message"]) == ("bad_request", True)
    assert [call["result"]["error_kind"] for call in outcome["tool_calls"]] == ["rejected", "denied"]
    assert len(client.events(conversation, "approval.requested")) == 1


@pytest.mark.parametrize("word", ["edited", "original"])
@pytest.mark.parametrize(
    ("vendor", "protocol"), [("anthropic", "native"), ("openai", "native"), ("openai", "json_text")]
)
async def test_a_call_runs_with_its_edited_arguments(
    client: Client, play: Play, model: ScriptedModel, vendor: str, protocol: str, word: str
) -> None:
    """An approval may edit a call; the edited call is executed, and invalid edits name the argument.

    The model learns it with the result; otherwise it would explain the result by its own arguments. Arguments
    that are sent back as they were are no edit.
    """
    written = {"tool": "bash", "parameters": {"command": "echo original"}, "terminate": False}
    first = bash("echo original") if protocol == "native" else ScriptedReply(text=json.dumps(written))
    name = play(first, ScriptedReply(text="ok"), vendor=vendor)
    conversation = await client.create(name, settings={"tool_protocol": protocol})
    run_id = await client.chat(conversation, "go")
    approval_request = await client.approval_request(run_id)
    call_id = approval_request["items"][0]["tool_call_id"]

    def decision(arguments: object) -> list[object]:
        return [{"tool_call_id": call_id, "decision": "approve", "arguments": arguments}]

    bad = await client.request(
        "approval.reply", approval_id=approval_request["approval_id"], decisions=decision({"command": 7})
    )
    assert (bad["type"], "command" in bad["message"]) == ("error", True)
    await client.request(
        "approval.reply",
        approval_id=approval_request["approval_id"],
        decisions=decision({"command": f"echo {word}"}),
    )

    assert (await client.finished(run_id))["tool_calls"][0]["result"]["stdout"] == f"{word}\n"
    told = json.dumps(model_requests(model, name)[1]["messages"][-1])
    was_edited = word == "edited"
    assert ("A person changed the arguments of this call before it ran." in told) == was_edited
    assert ("echo edited" in told) == was_edited


async def test_each_call_of_a_card_is_decided_in_the_browser(
    system: System, client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """R34, R13, R29: one is approved and runs, the other is rejected with a reason; the page shows both."""
    command = ScriptedCall(name="bash", arguments={"command": "echo approved > kept; cat kept"})
    write = ScriptedCall(name="write_file", arguments={"path": "refused.txt", "content": "no"})
    name = play(ScriptedReply(tool_calls=(command, write)), ScriptedReply(text="Then only the first."))
    tools = {"enabled": True, "on_reject": "feedback"}
    created = await http.post("/context/assistants", json={"model": name, "tools": tools})
    conversation = await client.create(assistant=created.json()["id"])
    async with opened(system.url) as page:
        await page.goto(f"{system.url}/#/c/{conversation}")
        await send_message(page, "do both")
        card = page.get_by_role("group", name="Approve 2 tool calls?")
        await card.get_by_role("group", name="Decide bash").get_by_role("button", name="Approve").click()
        await expect(card.get_by_role("button", name="1 undecided")).to_be_disabled()
        await card.get_by_role("group", name="Decide write_file").get_by_role("button", name="Reject").click()
        await card.get_by_role("button", name="Add a reason").click()
        await card.get_by_role("textbox", name="Reason, sent to the agent").fill("keep the folder clean")
        await card.get_by_role(
            "button", name="Reject and tell the agent The run continues. Runs: bash"
        ).click()

        decided = page.get_by_role("group", name="Decided approval request")
        await expect(decided).to_contain_text("Partly approved", timeout=WAIT_TIMEOUT_MS)
        await expect(decided.get_by_role("listitem").filter(has_text="refused.txt")).to_contain_text(
            "keep the folder clean"
        )
        await expect(page.get_by_text("Then only the first.")).to_be_visible(timeout=WAIT_TIMEOUT_MS)
        await page.get_by_role("button", name="2 tool calls: bash, write_file").click()
        await expect(page.get_by_role("group", name="Tool call bash")).to_contain_text("Done")
        await expect(page.get_by_role("group", name="Tool call write_file")).to_contain_text("Rejected")

    finished = await client.event("run.finished", conversation_id=conversation)
    results = {entry["tool"]: entry["result"] for entry in finished["data"]["tool_calls"]}
    assert results["bash"]["stdout"] == "approved\n"
    assert "keep the folder clean" in results["write_file"]["error"]


@pytest.mark.parametrize("on_reject", ["abort", "feedback"])
async def test_what_follows_a_call_that_waits_has_not_run_before_its_decision(
    client: Client, http: httpx.AsyncClient, play: Play, on_reject: str
) -> None:
    """R13, R12, R93: calls run in order up to the first that waits; what is before it runs at once."""
    read = ScriptedCall(name="read_file", arguments={"path": "none"})
    command = ScriptedCall(name="bash", arguments={"command": "echo never"})
    name = play(ScriptedReply(tool_calls=(read, command, read)), ScriptedReply(text="ok"))
    tools = {"enabled": True, "on_reject": on_reject}
    created = await http.post("/context/assistants", json={"model": name, "tools": tools})
    conversation = await client.create(assistant=created.json()["id"])
    run_id = await client.chat(conversation, "go")

    await client.approval_request(run_id)
    await client.event("tool_call.completed", run_id=run_id)
    await eventually(lambda: parked(http, run_id))
    before = len(client.events(conversation, "tool_call.completed"))
    await client.approve(run_id, "reject")
    outcome = await client.finished(run_id)

    kinds = [call["result"].get("error_kind") for call in outcome["tool_calls"]]
    assert before == 1
    assert outcome["status"] == {"abort": "rejected", "feedback": "completed"}[on_reject]
    assert kinds == ["tool_error", "rejected", "not_executed" if on_reject == "abort" else "tool_error"]


async def parked(http: httpx.AsyncClient, run_id: str) -> bool:
    return (await http.get(f"/context/runs/{run_id}")).json()["status"] == "awaiting_approval"
