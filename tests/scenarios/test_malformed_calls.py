"""Models that repeatedly write malformed calls: each is corrected, three times (A25)."""

from __future__ import annotations

import json

import pytest

from tests.agent.protocols.test_wrong_replies import CASES
from tests.scenarios.conftest import Play, model_requests
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply, ScriptedUsage
from tests.support.system import ScriptedModel

TEXT = {"tool_protocol": "json_text"}
READ = {"tool": "read_file", "parameters": {"path": "none"}, "terminate": False}
VENDORS = ("anthropic", "openai")
GIVEN_UP = ("failed", "malformed_calls")


def written(**fields: object) -> str:
    """Return a call with changed fields."""
    return json.dumps({**READ, **fields})


WRONG = {
    "arguments as text": written(parameters="path: none"),
    "arguments encoded twice": written(parameters=json.dumps(READ["parameters"])),
    "a flag as text": written(terminate="false"),
    "a field is missing": '{"tool": "read_file", "parameters": {"path": "none"}}',
    "two calls": f"{written()}\n{written()}",
    "two calls in one fence": f"```json\n{written()}\n{written()}\n```",
    "no number": written(parameters={"path": "none", "size": 1}).replace("1", "NaN"),
    "a key twice": written().replace('"path":', '"path": "a", "path":'),
    "no end": written()[:-12],
}


@pytest.mark.parametrize("kind", WRONG)
async def test_a_persistently_malformed_call_ends_the_run_after_three_attempts(
    client: Client, play: Play, model: ScriptedModel, kind: str
) -> None:
    """R9, R10, R32, A25: three corrections, each with the broken rule, of which the next run sends none."""
    wrong = ScriptedReply(text=WRONG[kind], usage=ScriptedUsage(input_tokens=5, output_tokens=1))
    name = play(*[wrong] * 4, ScriptedReply(text="Never mind."), by="count")
    conversation = await client.create(name, settings=TEXT)

    outcome = await client.run(conversation, "go")
    after = await client.run(conversation, "again")

    assert (outcome["status"], outcome["error"]["code"]) == GIVEN_UP
    assert (outcome["tool_calls"], client.events(conversation, "tool_call.requested")) == ([], [])
    rules = [event["data"]["error"] for event in client.events(conversation, "protocol.retry")]
    requests = [body["messages"] for body in model_requests(model, name)]
    assert (len(rules), len(requests), after["content"]) == (3, 5, "Never mind.")
    for number, (rule, messages) in enumerate(zip(rules, requests[1:4], strict=True), 1):
        assert rule in messages[-1]["content"]
        assert ("This is the last attempt" in messages[-1]["content"]) == (number == 3)
    assert [message["content"] for message in requests[4][-2:]] == ["go", "again"]
    assert outcome["usage"]["input_tokens"] == 20


async def test_a_followed_correction_is_not_sent_in_the_next_run(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """R10."""
    texts = (written(note="extra"), written(), "Read it.", "Hello.")
    name = play(*(ScriptedReply(text=text) for text in texts), by="count")
    conversation = await client.create(name, settings=TEXT)

    await client.run(conversation, "go")
    await client.run(conversation, "hi")

    sent = [[message["content"] for message in body["messages"]] for body in model_requests(model, name)]
    assert [any("Nothing was executed" in text for text in texts) for texts in sent] == [
        False,
        True,
        True,
        False,
    ]
    assert texts[0] not in sent[3] and texts[1] in sent[3]


NATIVE_WRONG = {
    "text": "path: none",
    "text encoded as JSON": json.dumps("path: none"),
    "a list": '[{"path": "none"}]',
    "no end": '{"path": "no',
    "no number": '{"path": NaN}',
    "no double": '{"path": 1e400}',
    "a key twice": '{"path": "a", "path": "b"}',
}


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("kind", NATIVE_WRONG)
async def test_persistently_malformed_arguments_end_the_run_after_three_attempts(
    client: Client, play: Play, model: ScriptedModel, kind: str, vendor: str
) -> None:
    """R10, R105, A25: each call has a result, and both vendors accept the history."""
    wrong = ScriptedReply(tool_calls=(ScriptedCall(name="read_file", arguments=NATIVE_WRONG[kind]),))
    name = play(wrong, wrong, wrong, ScriptedReply(text="Never mind."), vendor=vendor, by="count")
    conversation = await client.create(name)

    outcome = await client.run(conversation, "go")
    after = await client.run(conversation, "again")

    assert (outcome["status"], outcome["error"]["code"]) == GIVEN_UP
    kinds = [event["data"]["error_kind"] for event in client.events(conversation, "tool_call.completed")]
    assert kinds == ["invalid_arguments"] * 3
    assert (len(model_requests(model, name)), after["content"]) == (4, "Never mind.")


@pytest.mark.parametrize("vendor", VENDORS)
async def test_an_unknown_tool_is_named_each_time_until_the_iteration_limit(
    client: Client, play: Play, model: ScriptedModel, vendor: str
) -> None:
    """R7, R50, A25: it does not count as malformed, and causes no endless loop."""
    unknown = ScriptedReply(tool_calls=(ScriptedCall(name="no_such_tool", arguments={}),))
    name = play(unknown, at_end="repeat", vendor=vendor)
    conversation = await client.create(name, settings={"max_iterations": 3})

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], len(model_requests(model, name))) == ("max_iterations", 3)
    kinds = [event["data"]["error_kind"] for event in client.events(conversation, "tool_call.completed")]
    assert kinds == ["unknown_tool"] * 3


@pytest.mark.parametrize(
    "text",
    [
        f"Let me look.\n\n{written()}\n\nOne moment.",
        f"```json\n{written()}\n```",
        f"[{written()}]",
    ],
    ids=["in prose", "in a fence", "in a list"],
)
async def test_one_complete_call_runs_at_any_position_in_the_text(
    client: Client, play: Play, text: str
) -> None:
    """R1, A25."""
    conversation = await client.create(
        play(ScriptedReply(text=text), ScriptedReply(text="Done.")), settings=TEXT
    )

    outcome = await client.run(conversation, "go")

    assert (outcome["content"], [call["tool"] for call in outcome["tool_calls"]]) == ("Done.", ["read_file"])


async def test_a_call_within_nested_fences_is_an_example_and_does_not_run(client: Client, play: Play) -> None:
    """R11, A25."""
    text = f"An example:\n````markdown\nWrite this:\n```json\n{written()}\n```\n````\nThat is all."
    conversation = await client.create(play(ScriptedReply(text=text)), settings=TEXT)

    outcome = await client.run(conversation, "go")

    assert (outcome["content"], outcome["tool_calls"]) == (text, [])


async def test_every_wrong_reply_of_the_table_is_corrected_in_one_run(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """R10, R32, R37: after each correction the model continues; two in a row do not end the run."""
    wrong = [case.reply for case in CASES if case.expected.startswith("malformed")]
    pairs = [wrong[i : i + 2] for i in range(0, len(wrong), 2)]
    replies = [ScriptedReply(text=text) for pair in pairs for text in (*pair, written())]
    name = play(*replies, ScriptedReply(text="All corrected."))
    limits = {"max_iterations": len(pairs) + 1, "run_timeout_s": 600}
    conversation = await client.create(name, settings={**TEXT, **limits})

    outcome = await client.run(conversation, "go")

    retries = [event["data"] for event in client.events(conversation, "protocol.retry")]
    sent = [request["messages"][-1]["content"] for request in model_requests(model, name)]
    assert (outcome["status"], outcome["content"]) == ("completed", "All corrected.")
    assert [one["attempt"] for one in retries] == [1 + i % 2 for i in range(len(wrong))]
    assert len(outcome["tool_calls"]) == len(pairs) and len(wrong) > 100
    assert sum("Nothing was executed." in text for text in sent) == len(wrong)
    assert all(retry["error"] in "\n".join(sent) for retry in retries)
