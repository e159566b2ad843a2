"""The loop with the vendors' own tool calls (spec 004)."""

from __future__ import annotations

import json

import httpx
import pytest

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.names import api
from banksman.contracts.ids import new_id
from banksman.sdk import Toolbox, ToolServer
from tests.scenarios.conftest import Play, logged, model_requests
from tests.scenarios.test_tool_registry import local
from tests.support.client import Client
from tests.support.polling import eventually
from tests.support.scripted_models import Gate, ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System

READ = ScriptedCall(name="read_file", arguments={"path": "none"})


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_the_loop_executes_calls_and_reports_their_history(
    system: System, client: Client, play: Play, vendor: str
) -> None:
    """R88, R89, R90, R91, R93, R96, R97, R100, R101, R102: calls in order, iterations counted from 0."""
    replies = [
        ScriptedReply(tool_calls=(READ,)),
        ScriptedReply(tool_calls=(READ, READ)),
        ScriptedReply(text="Finished."),
    ]
    conversation = await client.create(play(*replies, vendor=vendor))

    run_id = await client.chat(conversation, "go")
    outcome = await client.finished(run_id)

    assert (outcome["status"], outcome["content"], outcome["iterations"]) == ("completed", "Finished.", 3)
    await logged(system, "agent", "this agent drives the run", run_id=run_id, iteration=1)
    for iteration, calls in ((1, 1), (2, 2)):
        text = "the model requested calls"
        await logged(system, "agent", text, run_id=run_id, iteration=iteration, calls=calls)
    await logged(system, "agent", "the run ended", run_id=run_id, iterations=3)
    assert [(e["tool"], e["iteration"]) for e in outcome["tool_calls"]] == [
        ("read_file", 0),
        ("read_file", 1),
        ("read_file", 1),
    ]
    assert all(e["params"] == {"path": "none"} and "success" in e["result"] for e in outcome["tool_calls"])
    assert outcome["model"].startswith(vendor) and outcome["service"]


async def test_without_calls_the_history_is_empty(client: Client, play: Play) -> None:
    """R103, R81: content, service and model, and an empty list."""
    conversation = await client.create(play(ScriptedReply(text="Hi.")))

    outcome = await client.run(conversation, "hi")

    assert (outcome["content"], outcome["tool_calls"]) == ("Hi.", [])


async def test_an_unknown_tool_is_named_and_the_others_still_run(client: Client, play: Play) -> None:
    """R50: that call gets an error, and the other calls of the reply are executed."""
    unknown = ScriptedCall(name="no_such_tool", arguments={})
    conversation = await client.create(
        play(ScriptedReply(tool_calls=(unknown, READ)), ScriptedReply(text="ok"))
    )

    outcome = await client.run(conversation, "go")

    assert outcome["status"] == "completed"
    kinds = [e["data"]["error_kind"] for e in client.events(conversation, "tool_call.completed")]
    assert kinds[0] == "unknown_tool" and len(kinds) == 2
    assert "no_such_tool" in outcome["tool_calls"][0]["result"]["error"]


@pytest.mark.parametrize(
    ("arguments", "error"), [('{"path": ', "could not be read"), ({"path": 5}, "path"), ({}, "path")]
)
async def test_invalid_arguments_become_an_error_result_of_their_call(
    client: Client, play: Play, arguments: object, error: str
) -> None:
    """R53, R94, R105: the error names the argument, the next call runs, and the model continues."""
    bad = ScriptedCall(name="read_file", arguments=arguments)  # type: ignore[arg-type]  # intentionally wrong
    conversation = await client.create(
        play(ScriptedReply(tool_calls=(bad, READ)), ScriptedReply(text="I will stop."))
    )

    outcome = await client.run(conversation, "go")

    assert outcome["content"] == "I will stop."
    results = [event["data"] for event in client.events(conversation, "tool_call.completed")]
    assert [result["error_kind"] for result in results] == ["invalid_arguments", "tool_error"]
    assert error in results[0]["content"]["error"]


async def test_arguments_that_are_not_json_are_logged(system: System, client: Client, play: Play) -> None:
    """R105: the line names the tool as the model wrote it, and the reason."""
    bad = ScriptedCall(name=new_id("tool"), arguments='{"path": ')

    await client.run(
        await client.create(play(ScriptedReply(tool_calls=(bad,)), ScriptedReply(text="ok"))), "go"
    )

    line = await logged(system, "agent", "malformed tool arguments", tool=bad.name, level="warning")
    assert "JSON" in line["error"]


@pytest.mark.parametrize(
    ("written", "reason", "content"),
    [
        ("Half a reply", "odd", "Half a reply"),
        ("", "odd", "I encountered an issue and could not finish the answer."),
        ("", "length", "I encountered an issue and could not finish the answer."),
        ("Cut off", "length", "Cut off"),
        ("", "content_filter", "I encountered an issue: the model's provider withheld the answer."),
    ],
)
async def test_an_unexpected_finish_reason_is_logged_and_the_content_returned(
    system: System, client: Client, play: Play, written: str, reason: str, content: str
) -> None:
    """R99: a warning, the calls, and the text of the model; without a text, one that states this."""
    replies = (ScriptedReply(tool_calls=(READ,)), ScriptedReply(text=written, finish_reason=reason))

    run_id, level = await client.chat(await client.create(play(*replies)), "go"), "warning"
    outcome = await client.finished(run_id)

    await logged(
        system, "agent", "unexpected finish reason", finish_reason=reason, run_id=run_id, level=level
    )
    assert (outcome["status"], outcome["content"]) == ("completed", content)
    assert [call["tool"] for call in outcome["tool_calls"]] == ["read_file"]


async def test_the_reply_is_streamed_while_it_is_written(
    client: Client, model: ScriptedModel, play: Play
) -> None:
    """R30: deltas with offsets while the model still writes, and one message that replaces them."""
    halfway = ScriptedReply(
        text="one two three four", chunk_chars=4, gate=Gate(name="halfway", after_events=4)
    )
    conversation = await client.create(play(halfway))

    run_id = await client.chat(conversation, "go")
    first = await client.event("message.delta", run_id=run_id)
    assert client.events(conversation, "message.completed") == []
    model.open_gate("halfway")
    await client.finished(run_id)

    assert "one two three four".startswith(first["data"]["text"])
    deltas = [f for f in client.frames if f["type"] == "message.delta"]
    [message] = [
        e for e in client.events(conversation, "message.completed") if e["data"]["role"] == "assistant"
    ]
    assert "".join(d["data"]["text"] for d in deltas) == message["data"]["content"] == "one two three four"
    assert deltas[0]["data"]["offset"] == 0
    assert {d["data"]["message_id"] for d in deltas} == {message["data"]["message_id"]}


async def test_a_second_message_waits_for_the_first_run(client: Client, play: Play) -> None:
    """A `chat.send` during an open run is queued, and starts after its end."""
    slow = ScriptedReply(tool_calls=(ScriptedCall(name="bash", arguments={"command": "true"}),))
    conversation = await client.create(play(slow, ScriptedReply(text="first"), ScriptedReply(text="second")))
    first = await client.chat(conversation, "one")
    await client.approval_request(first)

    second = await client.chat(conversation, "two")
    await client.event("run.queued", run_id=second)
    await client.approve(first)

    assert (await client.finished(first))["content"] == "first"
    assert (await client.finished(second))["content"] == "second"
    seqs = [event["seq"] for event in client.events(conversation)]
    assert seqs == list(range(1, len(seqs) + 1))


async def test_a_cancel_ends_a_parked_run_and_its_approval_request(client: Client, play: Play) -> None:
    """A cancelled run ends once; its calls have results, and its approval request is closed."""
    conversation = await client.create(
        play(ScriptedReply(tool_calls=(ScriptedCall(name="bash", arguments={"command": "touch never"}),)))
    )
    run_id = await client.chat(conversation, "go")
    await client.approval_request(run_id)

    await client.request("run.cancel", run_id=run_id, reason="changed my mind")
    outcome = await client.finished(run_id)

    assert outcome["status"] == "cancelled"
    [resolved] = client.events(conversation, "approval.resolved")
    assert resolved["data"]["outcome"] == "cancelled"


@pytest.mark.parametrize("ended_by", ["cancelled", "timed_out"])
async def test_streamed_text_stays_in_the_log_when_its_run_is_ended(
    client: Client, play: Play, ended_by: str
) -> None:
    """The text is a message of the log that is marked as partial, and counts as paid for."""
    gate = Gate(name=f"half-{ended_by}", after_events=4)
    name = play(
        ScriptedReply(text="The first half and the other half", gate=gate), ScriptedReply(text="Continued.")
    )
    limit = {"run_timeout_s": 2} if ended_by == "timed_out" else {}
    conversation = await client.create(name)
    run_id = await client.chat(conversation, "write", overrides=limit)
    await client.event("message.delta", run_id=run_id)

    if ended_by == "cancelled":
        await client.request("run.cancel", run_id=run_id)
    outcome = await client.finished(run_id)

    shown = "".join(frame["data"]["text"] for frame in client.frames if frame["type"] == "message.delta")
    [kept] = client.events(conversation, "message.completed")
    assert outcome["status"] == ended_by
    assert (kept["data"]["content"], kept["data"]["partial"]) == (shown, True)
    assert "The first half and the other half".startswith(shown.strip()) and shown
    assert outcome["usage"]["input_tokens"] > 0
    assert (await client.run(conversation, "go on"))["content"] == "Continued."


async def test_deleting_a_conversation_ends_its_run_and_removes_it(
    client: Client, system: System, play: Play
) -> None:
    """Its run ends, its log is removed except for the tombstone, and no client finds it again."""
    conversation = await client.create(
        play(ScriptedReply(tool_calls=(ScriptedCall(name="bash", arguments={"command": "touch never"}),)))
    )
    run_id = await client.chat(conversation, "go")
    await client.approval_request(run_id)

    async with httpx.AsyncClient(base_url=system.url) as http:
        deleted = await http.delete(f"/context/conversations/{conversation}")
        assert deleted.status_code in (200, 202, 204)
        assert (await client.finished(run_id))["status"] == "cancelled"
        assert (await http.get(f"/context/conversations/{conversation}")).status_code == 404


async def test_a_deleted_conversation_leaves_none_of_its_content_in_the_broker(
    client: Client, system: System, play: Play, operator: Bus
) -> None:
    """Its approval requests contain the arguments of calls, decided or not, and go with its log."""
    secret = new_id("unforgettable-")
    command = ScriptedCall(name="bash", arguments={"command": f"echo {secret}"})
    conversation = await client.create(play(ScriptedReply(tool_calls=(command,)), at_end="repeat"))
    run_id = await client.chat(conversation, f"go, {secret}")
    await client.approve(run_id)
    await client.approval_request(run_id)
    listed = (await jetstream.call(operator, api("STREAM.LIST")))["streams"]
    # The others are queues, whose messages are removed when they are handled.
    streams = [one["config"]["name"] for one in listed if one["config"].get("allow_direct")]

    async def left() -> dict[str, str]:
        return {
            message.subject: stream
            for stream in streams
            async for message in jetstream.read(operator, stream, ">", current=True)
            if secret.encode() in message.data
        }

    assert {"APPROVALS", "EVENTS"} <= set((await left()).values())
    async with httpx.AsyncClient(base_url=system.url) as http:
        (await http.delete(f"/context/conversations/{conversation}")).raise_for_status()

    async def gone() -> bool:
        return not await left()

    await eventually(gone, failure=lambda: "the broker still holds the content")


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_a_native_call_may_end_the_run_with_its_result(
    client: Client, play: Play, model: ScriptedModel, vendor: str
) -> None:
    """R36, R3: the offered schema has the optional `terminate`, which the tool never receives."""
    last = ScriptedCall(name="bash", arguments={"command": "echo lifted", "terminate": True})
    name = play(ScriptedReply(tool_calls=(last,)), vendor=vendor)
    conversation = await client.create(name)

    run = await client.chat(conversation, "go")
    await client.approve(run)
    outcome = await client.finished(run)

    [request] = model_requests(model, name)
    [bash] = [tool for tool in request["tools"] if tool.get("function", tool)["name"] == "bash"]
    schema = bash["function"]["parameters"] if vendor == "openai" else bash["input_schema"]
    assert schema["properties"]["terminate"]["type"] == "boolean"
    assert "terminate" not in schema["required"]
    assert (outcome["status"], outcome["content"]) == ("completed", "lifted\n")
    assert outcome["tool_calls"][0]["params"] == {"command": "echo lifted"}


@pytest.mark.parametrize("protocol", ["native", "json_text"])
async def test_a_tool_that_is_declared_terminating_ends_the_run(
    system: System, client: Client, play: Play, model: ScriptedModel, protocol: str
) -> None:
    """R36: a call with invalid arguments never reached the tool, so the model corrects it first."""
    name, box = new_id("hand_in_"), Toolbox()

    @box.tool(name=name, terminate=True)
    def hand_in(report: str) -> dict[str, str]:
        """Hand in the report.

        Args:
            report: The text.
        """
        return {"report": report}

    def call(**arguments: object) -> ScriptedReply:
        if protocol == "native":
            return ScriptedReply(tool_calls=(ScriptedCall(name=name, arguments=arguments),))
        return ScriptedReply(text=json.dumps({"tool": name, "parameters": arguments, "terminate": False}))

    played = play(call(report=5), call(report="All well."))
    async with ToolServer(new_id("office-"), box, nats=local(system), drain_s=0):
        conversation = await client.create(played, settings={"tool_protocol": protocol})
        outcome = await client.run(conversation, "go")

    first, _ = model_requests(model, played)
    offered = {tool["function"]["name"]: tool["function"] for tool in first.get("tools", ())}
    assert outcome["status"] == "completed"
    assert json.loads(outcome["content"])["report"] == "All well."
    assert "every call is your last action" in json.dumps(first["messages"])
    if protocol == "native":
        assert "terminate" not in offered[name]["parameters"]["properties"]
