"""A model that answers nonsense, fails, or breaks off: the run ends in order, and the log says why."""

from __future__ import annotations

import json

import pytest
from tests.scenarios.conftest import Play, asked, logged
from tests.support.client import Client
from tests.support.system import ScriptedModel, System

from banksman.model_server import (
    ConnectionCut,
    EarlyEnd,
    HalfJson,
    HttpError,
    RawReply,
    Reply,
    StreamError,
    ToolCall,
)
from banksman.model_server.script import Fault

TEXT = {"tool_protocol": "json_text"}
READ = {"tool": "read_file", "parameters": {"path": "none"}, "terminate": False}


def written(**fields: object) -> str:
    """A call with other fields than it should have."""
    return json.dumps({**READ, **fields})


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('{"tool": "read_file", "parameters": {"path": "a"', "JSON"),
        (written(terminate="false"), "terminate"),
        (written(parameters=["none"]), "parameters"),
        (written(tool=7), "tool"),
        ('{"tool": "read_file", "terminate": true}', "parameters"),
        ('{"tool": "read_file", "parameters": {}}', "terminate"),
        (written(note="extra"), "note"),
        (written() + "\n" + written(), "more than one"),
        ("```json\n" + written(terminate=None) + "\n```", "terminate"),
    ],
)
async def test_each_broken_rule_is_named_to_the_model_and_in_the_log(
    system: System, client: Client, play: Play, model: ScriptedModel, text: str, rule: str
) -> None:
    """R32, R37, R10: the model is told which rule of the format it broke, and may try again."""
    name = play(Reply(text=text), Reply(text="Never mind."))
    conversation = await client.create(name, settings=TEXT)
    run_id = await client.chat(conversation, "go")

    outcome = await client.finished(run_id)

    assert (outcome["status"], outcome["content"], outcome["tool_calls"]) == ("completed", "Never mind.", [])
    [retry] = client.events(conversation, "protocol.retry")
    assert rule in retry["data"]["error"]
    assert retry["data"]["error"] in asked(model, name)[1]["messages"][-1]["content"]
    entry = await logged(system, "agent", "the model's call could not be read", run_id=run_id)
    assert (entry["level"], entry["attempt"], entry["error"]) == ("warning", 1, retry["data"]["error"])


async def test_three_attempts_are_logged_one_by_one_and_end_the_run(
    system: System, client: Client, play: Play
) -> None:
    """R32: given up after three, with a warning for each and one for the end."""
    conversation = await client.create(play(*[Reply(text=written(tool=None))] * 3), settings=TEXT)
    run_id = await client.chat(conversation, "go")

    outcome = await client.finished(run_id)

    assert outcome["error"]["code"] == "malformed_calls"
    for attempt in (1, 2, 3):
        await logged(system, "agent", "the model's call could not be read", run_id=run_id, attempt=attempt)
    ended = await logged(system, "agent", "the run ended", run_id=run_id)
    assert (ended["level"], ended["code"]) == ("warning", "malformed_calls")


async def test_a_readable_call_forgives_the_attempts_before_it(client: Client, play: Play) -> None:
    """R32, R10: three in a row end the run, not three in all."""
    bad, good = Reply(text=written(tool=None)), Reply(text=written())
    name = play(bad, bad, good, bad, bad, Reply(text="Made it."))
    conversation = await client.create(name, settings=TEXT)

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["content"]) == ("completed", "Made it.")
    assert len(client.events(conversation, "protocol.retry")) == 4


@pytest.mark.parametrize(
    "text",
    [
        'Call it like {"path": "x"}.',
        '```json\n{"result": 1}\n```',
        "{not json at all}",
        'The word "tool" in quotes.',
        "}{" * 50,
    ],
)
async def test_text_that_only_looks_like_a_call_is_the_answer(client: Client, play: Play, text: str) -> None:
    """R11, R37: no object with a tool's name in it, so no attempt."""
    conversation = await client.create(play(Reply(text=text)), settings=TEXT)

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["content"]) == ("completed", text)


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
@pytest.mark.parametrize(
    "fault",
    [
        HttpError(status=500, message="Oh.", times=1),
        HttpError(status=503, message="Busy.", times=1),
        HttpError(status=429, message="Slow down.", retry_after_s=0.1, times=1),
        ConnectionCut(times=1),
        ConnectionCut(after_events=3, times=1),
        HalfJson(after_events=3, times=1),
        EarlyEnd(times=1),
        StreamError(after_events=2, times=1),
    ],
    ids=lambda fault: f"{fault.kind}{getattr(fault, 'after_events', '')}{getattr(fault, 'status', '')}",
)
async def test_a_passing_fault_is_repeated_and_nothing_of_it_stays(
    client: Client, play: Play, model: ScriptedModel, fault: Fault, vendor: str
) -> None:
    """R39: the request goes out again, and the message holds each word once."""
    name = play(Reply(text="one two three four", fault=fault), vendor=vendor)
    conversation = await client.create(name)

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["content"]) == ("completed", "one two three four")
    assert len(asked(model, name)) == 2


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_vendors_refusal_ends_the_run_with_its_words_and_without_our_key(
    client: Client, play: Play, status: int, vendor: str
) -> None:
    """R39: what trying again cannot change is told at once."""
    fault = HttpError(status=status, message="No, because.")
    conversation = await client.create(play(Reply(fault=fault), vendor=vendor))

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["error"]["code"]) == ("failed", "provider_error")
    assert "No, because." in outcome["error"]["message"] and str(status) in outcome["error"]["message"]
    assert "canary" not in json.dumps(client.frames)


@pytest.mark.parametrize(
    "raw",
    [
        RawReply(raw_chunks=("<html>Bad gateway</html>",), content_type="text/html", status=400),
        RawReply(raw_chunks=('data: {"unexpected": true}\n\n', "data: [DONE]\n\n")),
        RawReply(raw_chunks=("data: [1, 2]\n\n", "data: [DONE]\n\n")),
        RawReply(raw_chunks=('{"choices": "none"}',), content_type="application/json"),
    ],
    ids=["html", "foreign object", "array", "no stream"],
)
async def test_an_answer_in_no_known_form_ends_the_run(client: Client, play: Play, raw: RawReply) -> None:
    """R39, R37: the run fails with a reason; it neither hangs nor takes nonsense for an answer."""
    conversation = await client.create(play(raw, at_end="repeat"), settings={"run_timeout_s": 4})

    outcome = await client.run(conversation, "go")

    assert outcome["status"] in ("failed", "timed_out"), outcome
    assert outcome["error"]["message"] and outcome["tool_calls"] == []


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_an_empty_answer_is_an_answer(client: Client, play: Play, vendor: str) -> None:
    """R39, A27: a model that says nothing ends its run, and its vendor takes what follows."""
    conversation = await client.create(
        play(Reply(text=""), Reply(text="Something."), vendor=vendor, by="count")
    )

    outcome = await client.run(conversation, "go")
    after = await client.run(conversation, "again")

    assert (outcome["status"], outcome["content"]) == ("completed", "")
    assert after["content"] == "Something."


async def test_a_conversation_goes_on_after_a_run_that_failed(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """R39: what failed stays in the log, and the next message is answered."""
    name = play(Reply(fault=HttpError(status=400, times=1), text="Here I am."))
    conversation = await client.create(name)
    failed = await client.run(conversation, "one")

    outcome = await client.run(conversation, "two")

    assert (failed["status"], outcome["content"]) == ("failed", "Here I am.")


async def test_a_tool_that_fails_is_told_to_the_model_which_may_try_otherwise(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """R104, R106: `success: false` reaches the model as the call's result, and the loop goes on."""
    look = Reply(tool_calls=(ToolCall(name="read_file", arguments={"path": "a.txt"}),))
    name = play(look, look, Reply(text="There is no a.txt."))
    conversation = await client.create(name)

    outcome = await client.run(conversation, "read a.txt")

    told = json.loads(asked(model, name)[1]["messages"][-1]["content"])
    assert (told["success"], "a.txt" in told["error"]) == (False, True)
    assert (outcome["content"], len(outcome["tool_calls"])) == ("There is no a.txt.", 2)
