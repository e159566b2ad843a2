"""Models with endless output or none: the run ends by a limit that it names (P12)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scenarios.conftest import Play, model_requests
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply, Silence
from tests.support.system import ScriptedModel

pytestmark = pytest.mark.timeout(180)

LOOK = ScriptedCall(name="read_file", arguments={"path": "none"})


@pytest.mark.parametrize(("vendor", "calls"), [("openai", 1_500), ("openai", 10_000), ("anthropic", 1_500)])
async def test_a_run_continues_after_a_flood_of_calls(
    client: Client, play: Play, model: ScriptedModel, vendor: str, calls: int
) -> None:
    """P12, A24: the first calls are executed, and the model reads an error for each of the others."""
    flood = ScriptedReply(tool_calls=(LOOK,) * calls)
    name = play(flood, ScriptedReply(text="Sorry."), vendor=vendor)
    # Without the events of single calls: the connection of a client that reads them too slowly is closed.
    conversation = await client.create(name, detail="final")

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["content"]) == ("completed", "Sorry.")
    messages = model_requests(model, name)[-1]["messages"]
    results = result_texts(messages)
    refused = ["at most 32 calls" in text for text in results]
    assert refused == [False] * 32 + [True] * (min(calls, 1_600) - 32)
    assert ("Further calls were left out" in str(messages)) == (calls > 1_600)


def result_texts(messages: list[dict[str, Any]]) -> list[str]:
    """Return the results of calls in a request, in the format of either vendor."""
    native = [str(message["content"]) for message in messages if message["role"] == "tool"]
    blocks = [block for message in messages for block in message["content"] or () if isinstance(block, dict)]
    return native + [str(block["content"]) for block in blocks if block.get("type") == "tool_result"]


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
async def test_a_reply_of_a_mebibyte_is_cut_and_the_conversation_continues(
    client: Client, play: Play, vendor: str
) -> None:
    """P12, A24."""
    long = ScriptedReply(text="word " * 210_000, chunk_chars=100)
    conversation = await client.create(play(long, ScriptedReply(text="Short."), vendor=vendor))

    outcome = await client.run(conversation, "go")
    after = await client.run(conversation, "again")

    assert outcome["status"] == "completed"
    assert 0 < len(outcome["content"]) <= 256 * 1024
    assert after["content"] == "Short."


@pytest.mark.parametrize("size", [100_000, 250_000, 600_000])
async def test_a_call_with_huge_arguments_ends_by_a_result_or_by_a_named_limit(
    client: Client, play: Play, size: int
) -> None:
    """P12, A24: the approval request with its preview fits the log, or the run reports that it does not."""
    write = ScriptedCall(name="write_file", arguments={"path": "a.txt", "content": '\n"é' * (size // 3)})
    name = play(ScriptedReply(tool_calls=(write,)), ScriptedReply(text="Next."), at_end="repeat")
    conversation = await client.create(name)

    run_id = await client.chat(conversation, "go")
    frame = await client.wait_for(
        lambda frame: frame["type"] in ("approval.requested", "run.finished") and frame["run_id"] == run_id
    )
    if frame["type"] == "approval.requested":
        await client.approve(run_id, "reject")
    outcome = await client.finished(run_id)
    after = await client.run(conversation, "again")

    assert outcome["status"] in ("rejected", "failed", "completed")
    assert outcome["status"] != "failed" or outcome["error"]["code"] in ("too_large", "malformed_calls")
    assert after["status"] in ("completed", "rejected")


async def test_an_endless_loop_ends_at_the_iteration_limit(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """P12, A24: the model is not called more often."""
    name = play(ScriptedReply(tool_calls=(LOOK,)), at_end="repeat")
    conversation = await client.create(name, settings={"max_iterations": 5})

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["iterations"]) == ("max_iterations", 5)
    assert len(model_requests(model, name)) == 5


async def test_an_endless_stream_ends_at_the_time_limit_of_the_run(client: Client, play: Play) -> None:
    """P12, A24: endless text, and the run's time limit."""
    endless = ScriptedReply(text="x " * 20_000, chunk_delay_s=0.05)
    conversation = await client.create(play(endless, at_end="repeat"), settings={"run_timeout_s": 3})

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["error"]["code"]) == ("timed_out", "run_timeout")


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
async def test_a_silent_model_ends_at_the_time_limit_of_the_run(
    client: Client, play: Play, vendor: str
) -> None:
    """P12, A27: a provider that accepts the request and sends nothing."""
    silent = ScriptedReply(text="never", fault=Silence(duration_s=60))
    conversation = await client.create(
        play(silent, at_end="repeat", vendor=vendor), settings={"run_timeout_s": 3}
    )

    outcome = await client.run(conversation, "go")

    assert (outcome["status"], outcome["error"]["code"]) == ("timed_out", "run_timeout")


async def test_three_calls_that_succeed_fail_and_are_refused_all_get_results(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """P11, A23: three results, in the order of the calls, in one request."""
    calls = (
        ScriptedCall(name="read_file", arguments={"path": "none"}),
        ScriptedCall(name="no_such_tool", arguments={}),
        ScriptedCall(name="read_file", arguments={"wrong": True}),
    )
    name = play(ScriptedReply(tool_calls=calls), ScriptedReply(text="I see."))
    conversation = await client.create(name)

    outcome = await client.run(conversation, "go")

    kinds = [call["result"]["error_kind"] for call in outcome["tool_calls"]]
    assert sorted(kinds) == ["invalid_arguments", "tool_error", "unknown_tool"]
    told = [message for message in model_requests(model, name)[1]["messages"] if message["role"] == "tool"]
    asked_for = model_requests(model, name)[1]["messages"][-4]["tool_calls"]
    assert [message["tool_call_id"] for message in told] == [call["id"] for call in asked_for]
