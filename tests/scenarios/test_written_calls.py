"""Models whose server passes calls and reasoning on as text."""

from __future__ import annotations

from tests.scenarios.conftest import Play, logged, model_requests
from tests.support.client import Client
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel, System

CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "none"}}\n</tool_call>'
EXAMPLE = f"This is how a call looks:\n\n```xml\n{CALL}\n```\n"


async def test_a_call_in_the_text_is_executed_and_reasoning_is_not_sent_back(
    system: System, client: Client, model: ScriptedModel, play: Play
) -> None:
    replies = (
        ScriptedReply(text=f"<think>\nI look.\n</think>\n\nOne moment.\n{CALL}", chunk_chars=3),
        ScriptedReply(text="<think>Gone.</think>There is no such file.", chunk_chars=3),
    )
    name = play(*replies)
    conversation = await client.create(name)

    run_id = await client.chat(conversation, "go")
    outcome = await client.finished(run_id)

    assert (outcome["status"], outcome["content"]) == ("completed", "There is no such file.")
    assert [call["tool"] for call in outcome["tool_calls"]] == ["read_file"]
    second = model_requests(model, name)[1]
    assert "I look." not in str(second["messages"])
    assert second["messages"][-2]["content"] == "One moment."
    shown = dict.fromkeys(("message.delta", "reasoning.delta"), "")
    for frame in client.frames:
        if frame["type"] in shown:
            shown[frame["type"]] += frame["data"]["text"]
    assert "I look." in shown["reasoning.delta"] and "Gone." in shown["reasoning.delta"]
    assert "think" not in shown["message.delta"] and "tool_call" not in shown["message.delta"]
    [notice] = client.events(conversation, "model.notice")
    assert notice["data"]["kind"] == "repaired"
    await logged(system, "agent", notice["data"]["text"], run_id=run_id, level="warning")


async def test_an_example_of_a_call_in_a_fence_is_the_answer(client: Client, play: Play) -> None:
    conversation = await client.create(play(ScriptedReply(text=EXAMPLE)))

    outcome = await client.run(conversation, "Show me an example call.")

    assert (outcome["status"], outcome["content"], outcome["tool_calls"]) == ("completed", EXAMPLE, [])
