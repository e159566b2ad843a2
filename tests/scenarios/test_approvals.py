"""People decide (R12, R13, R30, R34)."""

from __future__ import annotations

from tests.scenarios.conftest import Play
from tests.support.client import Client
from tests.support.system import System

from banksman.model_server import Reply, ToolCall


def bash(*commands: str) -> Reply:
    """A reply that asks for these commands at once."""
    return Reply(tool_calls=tuple(ToolCall(name="bash", arguments={"command": c}) for c in commands))


async def test_a_call_that_must_ask_waits_for_the_answer(client: Client, play: Play) -> None:
    """R12: the loop pauses, the client is asked with the exact call, and approval lets it run."""
    conversation = await client.create(play(bash("echo approved > mark; cat mark"), Reply(text="Done.")))
    run_id = await client.chat(conversation, "go")

    asked = await client.question(run_id)
    assert [item["arguments"] for item in asked["items"]] == [{"command": "echo approved > mark; cat mark"}]
    assert asked["items"][0]["preview"]["kind"] == "command"
    assert client.events(conversation, "tool_call.completed") == []

    await client.approve(run_id)
    outcome = await client.finished(run_id)

    assert outcome["tool_calls"][0]["result"]["stdout"] == "approved\n"
    [resolved] = client.events(conversation, "approval.resolved")
    assert (resolved["data"]["outcome"], resolved["data"]["by"]) == ("approved", "local")


async def test_rejecting_ends_the_run_and_later_calls_do_not_run(client: Client, play: Play) -> None:
    """R13: rejection aborts the loop; the message says so; nothing that still waits is executed."""
    conversation = await client.create(play(bash("touch one", "touch two"), Reply(text="unreachable")))
    run_id = await client.chat(conversation, "go")
    asked = await client.question(run_id)
    first, second = (item["tool_call_id"] for item in asked["items"])

    decisions = [
        {"tool_call_id": first, "decision": "reject", "reason": "not on my machine"},
        {"tool_call_id": second, "decision": "approve"},
    ]
    await client.request("approval.reply", approval_id=asked["approval_id"], decisions=decisions)
    outcome = await client.finished(run_id)

    assert outcome["status"] == "rejected"
    assert "not on my machine" in outcome["content"]
    kinds = [e["data"]["error_kind"] for e in client.events(conversation, "tool_call.completed")]
    assert sorted(kinds) == ["not_executed", "rejected"]


async def test_the_first_decision_wins_and_the_second_is_told_so(
    system: System, client: Client, play: Play
) -> None:
    """A second reply to an approval gets the winner's value."""
    conversation = await client.create(play(bash("true"), Reply(text="ok")))
    run_id = await client.chat(conversation, "go")
    asked = await client.question(run_id)

    first = await client.request("approval.reply", approval_id=asked["approval_id"], all="approve")
    second = await client.request("approval.reply", approval_id=asked["approval_id"], all="reject")

    assert (first["already_resolved"], second["already_resolved"]) == (False, True)
    assert (await client.finished(run_id))["status"] == "completed"


async def test_a_second_device_is_asked_too_and_may_answer(
    system: System, client: Client, play: Play
) -> None:
    """R30: the question is sent again to whoever subscribes while it is open."""
    conversation = await client.create(play(bash("true"), Reply(text="ok")))
    run_id = await client.chat(conversation, "go")
    asked = await client.question(run_id)

    async with Client.connected(system.url) as other:
        subscribed = await other.request("subscribe", conversation_id=conversation, after_seq=0)
        [pending] = subscribed["pending_approvals"]
        assert pending["approval_id"] == asked["approval_id"]
        await other.request("approval.reply", approval_id=pending["approval_id"], all="approve")

    assert (await client.finished(run_id))["status"] == "completed"


async def test_several_calls_of_one_reply_are_one_question(client: Client, play: Play) -> None:
    """R34: one approval holds all calls of an iteration, and one answer decides them."""
    conversation = await client.create(play(bash("echo 1", "echo 2", "echo 3"), Reply(text="ok")))
    run_id = await client.chat(conversation, "go")

    await client.approve(run_id)
    outcome = await client.finished(run_id)

    assert len(client.events(conversation, "approval.requested")) == 1
    assert [entry["result"]["stdout"] for entry in outcome["tool_calls"]] == ["1\n", "2\n", "3\n"]


async def test_edited_arguments_are_what_runs(client: Client, play: Play) -> None:
    """An approval may edit a call; the edited one is executed, and invalid edits name the argument."""
    conversation = await client.create(play(bash("echo original"), Reply(text="ok")))
    run_id = await client.chat(conversation, "go")
    asked = await client.question(run_id)
    call_id = asked["items"][0]["tool_call_id"]

    def decision(arguments: object) -> list[object]:
        return [{"tool_call_id": call_id, "decision": "approve", "arguments": arguments}]

    bad = await client.request(
        "approval.reply", approval_id=asked["approval_id"], decisions=decision({"command": 7})
    )
    assert (bad["type"], "command" in bad["message"]) == ("error", True)
    await client.request(
        "approval.reply", approval_id=asked["approval_id"], decisions=decision({"command": "echo edited"})
    )

    assert (await client.finished(run_id))["tool_calls"][0]["result"]["stdout"] == "edited\n"
