"""A model whose replies are malformed, fail or break off: the run ends properly, and the log has the
reason."""

from __future__ import annotations

import json

import pytest

from tests.scenarios.conftest import Play, logged, model_requests
from tests.support.client import Client
from tests.support.scripted_models import (
    ConnectionCut,
    EarlyEnd,
    Fault,
    HalfJson,
    HttpError,
    RawReply,
    ScriptedCall,
    ScriptedReply,
    ScriptedUsage,
    StreamError,
)
from tests.support.system import ScriptedModel, System

TEXT = {"tool_protocol": "json_text"}
READ = {"tool": "read_file", "parameters": {"path": "none"}, "terminate": False}


def written(**fields: object) -> str:
    """Return a call with changed fields."""
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
async def test_each_broken_rule_is_returned_to_the_model_and_logged(
    system: System, client: Client, play: Play, model: ScriptedModel, text: str, rule: str
) -> None:
    """R32, R37, R10: the model receives the rule of the format that it broke, and may retry."""
    name = play(ScriptedReply(text=text), ScriptedReply(text="Never mind."))
    conversation = await client.create(name, settings=TEXT)
    run_id = await client.chat(conversation, "go")

    outcome = await client.finished(run_id)

    assert (outcome["status"], outcome["content"], outcome["tool_calls"]) == ("completed", "Never mind.", [])
    [retry] = client.events(conversation, "protocol.retry")
    assert rule in retry["data"]["error"]
    assert retry["data"]["error"] in model_requests(model, name)[1]["messages"][-1]["content"]
    entry = await logged(system, "agent", "the model's call could not be read", run_id=run_id)
    assert (entry["level"], entry["attempt"], entry["error"]) == ("warning", 1, retry["data"]["error"])


async def test_three_malformed_attempts_are_logged_and_end_the_run(
    system: System, client: Client, play: Play
) -> None:
    """R32: the run ends after three corrections, with one warning for each reply and one for the end."""
    conversation = await client.create(play(*[ScriptedReply(text=written(tool=None))] * 4), settings=TEXT)
    run_id = await client.chat(conversation, "go")

    outcome = await client.finished(run_id)

    assert outcome["error"]["code"] == "malformed_calls"
    for attempt in (1, 2, 3, 4):
        line = await logged(
            system, "agent", "the model's call could not be read", run_id=run_id, attempt=attempt
        )
        assert (line["level"], line["iteration"], "tool" in line["error"]) == ("warning", 1, True)
    ended = await logged(system, "agent", "the run ended", run_id=run_id)
    assert (ended["level"], ended["code"]) == ("warning", "malformed_calls")


async def test_a_valid_call_resets_the_count_of_malformed_attempts(client: Client, play: Play) -> None:
    """R32, R10: only corrections in a row end the run."""
    bad, good = ScriptedReply(text=written(tool=None)), ScriptedReply(text=written())
    name = play(bad, bad, bad, good, bad, bad, bad, ScriptedReply(text="Made it."))
    conversation = await client.create(name, settings=TEXT)

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["content"]) == ("completed", "Made it.")
    assert len(client.events(conversation, "protocol.retry")) == 6


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
async def test_text_that_resembles_a_call_is_the_final_reply(client: Client, play: Play, text: str) -> None:
    """R11, R37: without an object that has a tool's name, text is no attempted call."""
    conversation = await client.create(play(ScriptedReply(text=text)), settings=TEXT)

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
async def test_a_request_is_retried_after_a_transient_fault(
    client: Client, play: Play, model: ScriptedModel, fault: Fault, vendor: str
) -> None:
    """R39: the request is sent again, and the message contains each word once."""
    name = play(ScriptedReply(text="one two three four", fault=fault), vendor=vendor)
    conversation = await client.create(name)

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["content"]) == ("completed", "one two three four")
    assert len(model_requests(model, name)) == 2


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_vendors_refusal_ends_the_run_with_its_message_and_without_the_key(
    client: Client, play: Play, status: int, vendor: str
) -> None:
    """R39: an error that a retry cannot fix is reported at once."""
    fault = HttpError(status=status, message="No, because.")
    conversation = await client.create(play(ScriptedReply(fault=fault), vendor=vendor))

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
async def test_a_reply_in_an_unknown_format_ends_the_run(client: Client, play: Play, raw: RawReply) -> None:
    """R39, R37: the run fails with a reason; it neither hangs nor accepts the malformed reply."""
    conversation = await client.create(play(raw, at_end="repeat"), settings={"run_timeout_s": 4})

    outcome = await client.run(conversation, "go")

    assert outcome["status"] in ("failed", "timed_out"), outcome
    assert outcome["error"]["message"] and outcome["tool_calls"] == []


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_an_empty_reply_is_requested_again(
    system: System, client: Client, play: Play, model: ScriptedModel, vendor: str
) -> None:
    """R39, A27: the run states it, counts both replies, and the nudge is not part of later requests."""
    empty, blank = ScriptedReply(text=""), ScriptedReply(text="  \n", reasoning="Hmm.")
    name = play(
        empty, ScriptedReply(text="Here."), blank, ScriptedReply(text="It."), vendor=vendor, by="count"
    )
    conversation = await client.create(name)

    run_id = await client.chat(conversation, "go")
    outcome = await client.finished(run_id)
    after = await client.run(conversation, "again")

    assert (outcome["status"], outcome["content"], after["content"]) == ("completed", "Here.", "It.")
    requests = model_requests(model, name)
    assert [str(request).count("Your last reply was empty") for request in requests] == [0, 1, 0, 1]
    notices = [event["data"] for event in client.events(conversation, "model.notice")]
    assert [notice["kind"] for notice in notices] == ["nudged", "nudged"]
    assert outcome["usage"]["output_tokens"] >= 1
    await logged(system, "agent", "the model's reply is empty", run_id=run_id, level="warning")


@pytest.mark.parametrize("protocol", ["native", "json_text"])
async def test_two_empty_replies_fail_the_run_with_their_reason(
    client: Client, play: Play, protocol: str
) -> None:
    """R39: an empty reply never counts as an answer, and the conversation continues."""
    empty = ScriptedReply(text="", usage=ScriptedUsage(input_tokens=7, output_tokens=2))
    name = play(empty, empty, ScriptedReply(text="Something."), by="count")
    conversation = await client.create(name, settings={"tool_protocol": protocol})

    outcome = await client.run(conversation, "go")
    after = await client.run(conversation, "again")

    assert (outcome["status"], outcome["error"]["code"]) == ("failed", "empty_reply")
    assert "without text and without a call" in outcome["error"]["message"]
    assert outcome["usage"]["input_tokens"] == 14
    assert after["content"] == "Something."


async def test_a_conversation_continues_after_a_failed_run(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """R39: the failed run stays in the log, and the next message gets a reply."""
    name = play(ScriptedReply(fault=HttpError(status=400, times=1), text="Here I am."))
    conversation = await client.create(name)
    failed = await client.run(conversation, "one")

    outcome = await client.run(conversation, "two")

    assert (failed["status"], outcome["content"]) == ("failed", "Here I am.")


async def test_a_failed_tool_result_reaches_the_model(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """R104, R106: `success: false` reaches the model as the call's result, and the loop continues."""
    look = ScriptedReply(tool_calls=(ScriptedCall(name="read_file", arguments={"path": "a.txt"}),))
    name = play(look, look, ScriptedReply(text="There is no a.txt."))
    conversation = await client.create(name)

    outcome = await client.run(conversation, "read a.txt")

    result = json.loads(model_requests(model, name)[1]["messages"][-1]["content"])
    assert (result["success"], "a.txt" in result["error"]) == (False, True)
    assert (outcome["content"], len(outcome["tool_calls"])) == ("There is no a.txt.", 2)
