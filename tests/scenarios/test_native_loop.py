"""The loop with the vendors' own tool calls (spec 004)."""

from __future__ import annotations

import httpx
import pytest
from tests.scenarios.conftest import Play
from tests.support.client import Client
from tests.support.system import System

from banksman.model_server import Reply, ToolCall

READ = ToolCall(name="read_file", arguments={"path": "none"})


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_the_loop_calls_collects_and_answers_with_its_history(
    client: Client, play: Play, vendor: str
) -> None:
    """R89, R90, R91, R93, R96, R97, R100, R101, R102: all is tracked, in order, by iteration."""
    replies = [Reply(tool_calls=(READ,)), Reply(tool_calls=(READ, READ)), Reply(text="Finished.")]
    conversation = await client.create(play(*replies, vendor=vendor))

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["content"], outcome["iterations"]) == ("completed", "Finished.", 3)
    assert [(e["tool"], e["iteration"]) for e in outcome["tool_calls"]] == [
        ("read_file", 1),
        ("read_file", 2),
        ("read_file", 2),
    ]
    assert all(e["params"] == {"path": "none"} and "success" in e["result"] for e in outcome["tool_calls"])
    assert outcome["model"].startswith(vendor) and outcome["service"]


async def test_without_calls_the_history_is_empty(client: Client, play: Play) -> None:
    """R103, R81: content, service and model, and an empty list."""
    conversation = await client.create(play(Reply(text="Hi.")))

    outcome = await client.run(conversation, "hi")

    assert (outcome["content"], outcome["tool_calls"]) == ("Hi.", [])


async def test_an_unknown_tool_is_named_and_the_others_still_run(client: Client, play: Play) -> None:
    """R50: an error for that call, the rest of the batch is executed."""
    unknown = ToolCall(name="search_code", arguments={})
    conversation = await client.create(play(Reply(tool_calls=(unknown, READ)), Reply(text="ok")))

    outcome = await client.run(conversation, "go")

    assert outcome["status"] == "completed"
    kinds = [e["data"]["error_kind"] for e in client.events(conversation, "tool_call.completed")]
    assert kinds[0] == "unknown_tool" and len(kinds) == 2
    assert "search_code" in outcome["tool_calls"][0]["result"]["error"]


@pytest.mark.parametrize(
    ("arguments", "told"), [('{"path": ', "could not be read"), ({"path": 5}, "path"), ({}, "path")]
)
async def test_bad_arguments_are_that_calls_result(
    client: Client, play: Play, arguments: object, told: str
) -> None:
    """R53, R94, R105: caught, named, and the model goes on."""
    bad = ToolCall(name="read_file", arguments=arguments)  # type: ignore[arg-type]  # wrong on purpose
    conversation = await client.create(play(Reply(tool_calls=(bad,)), Reply(text="I will stop.")))

    outcome = await client.run(conversation, "go")

    assert outcome["content"] == "I will stop."
    [completed] = client.events(conversation, "tool_call.completed")
    assert completed["data"]["error_kind"] == "invalid_arguments"
    assert told in completed["data"]["content"]["error"]


async def test_an_unknown_finish_reason_still_gives_an_answer(client: Client, play: Play) -> None:
    """R99: a warning in the log, the content as it is."""
    conversation = await client.create(play(Reply(text="Half an answer", finish_reason="moonphase")))

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["content"]) == ("completed", "Half an answer")


async def test_the_answer_is_streamed_while_it_is_written(client: Client, play: Play) -> None:
    """R30: deltas with offsets, and one message that replaces them."""
    conversation = await client.create(play(Reply(text="one two three four", chunk_chars=4)))

    await client.run(conversation, "go")

    deltas = [f for f in client.frames if f["type"] == "message.delta"]
    [message] = [
        e for e in client.events(conversation, "message.completed") if e["data"]["role"] == "assistant"
    ]
    assert "".join(d["data"]["text"] for d in deltas) == message["data"]["content"] == "one two three four"
    assert deltas[0]["data"]["offset"] == 0
    assert {d["data"]["message_id"] for d in deltas} == {message["data"]["message_id"]}


async def test_a_second_message_waits_for_the_first_run(client: Client, play: Play) -> None:
    """A `chat.send` while a run is open is queued, and starts when that one has ended."""
    slow = Reply(tool_calls=(ToolCall(name="bash", arguments={"command": "true"}),))
    conversation = await client.create(play(slow, Reply(text="first"), Reply(text="second")))
    first = await client.chat(conversation, "one")
    await client.question(first)

    second = await client.chat(conversation, "two")
    await client.event("run.queued", run_id=second)
    await client.approve(first)

    assert (await client.finished(first))["content"] == "first"
    assert (await client.finished(second))["content"] == "second"
    seqs = [event["seq"] for event in client.events(conversation)]
    assert seqs == list(range(1, len(seqs) + 1))


async def test_cancelling_ends_a_waiting_run_and_its_question(client: Client, play: Play) -> None:
    """A cancelled run ends once, its calls with results, its question closed."""
    conversation = await client.create(
        play(Reply(tool_calls=(ToolCall(name="bash", arguments={"command": "touch never"}),)))
    )
    run_id = await client.chat(conversation, "go")
    await client.question(run_id)

    await client.request("run.cancel", run_id=run_id, reason="changed my mind")
    outcome = await client.finished(run_id)

    assert outcome["status"] == "cancelled"
    [resolved] = client.events(conversation, "approval.resolved")
    assert resolved["data"]["outcome"] == "cancelled"


async def test_a_deleted_conversation_ends_what_is_open_and_is_gone(
    client: Client, system: System, play: Play
) -> None:
    """Its run ends, its log is removed but for the tombstone, and nobody finds it any more."""
    conversation = await client.create(
        play(Reply(tool_calls=(ToolCall(name="bash", arguments={"command": "touch never"}),)))
    )
    run_id = await client.chat(conversation, "go")
    await client.question(run_id)

    async with httpx.AsyncClient(base_url=system.url) as http:
        deleted = await http.delete(f"/context/conversations/{conversation}")
        assert deleted.status_code in (200, 202, 204)
        assert (await client.finished(run_id))["status"] == "cancelled"
        assert (await http.get(f"/context/conversations/{conversation}")).status_code == 404
