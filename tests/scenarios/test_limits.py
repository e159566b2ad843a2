"""Every loop ends (R7, R8, R31, R88, R98)."""

from __future__ import annotations

from tests.scenarios.conftest import Play
from tests.support.client import Client
from tests.support.scripted_models import Gate, ScriptedCall, ScriptedReply

LOOK = ScriptedReply(tool_calls=(ScriptedCall(name="read_file", arguments={"path": "nothing.txt"}),))


async def test_the_iteration_limit_ends_the_run_with_one_complete_event(client: Client, play: Play) -> None:
    """R7, R31, R88, R98: status, message, flag and the calls so far, in one terminal event."""
    name = play(LOOK, at_end="repeat")
    conversation = await client.create(name, settings={"max_iterations": 3})

    outcome = await client.run(conversation, "never stop")

    assert (outcome["status"], outcome["max_iterations_reached"]) == ("max_iterations", True)
    assert "maximum number of tool calls" in outcome["content"]
    assert [entry["iteration"] for entry in outcome["tool_calls"]] == [0, 1, 2]
    assert outcome["error"]["code"] == "max_iterations"


async def test_the_time_limit_ends_a_run_whose_model_is_silent(client: Client, play: Play) -> None:
    """R8: the total time limit, which is reported to the user."""
    name = play(ScriptedReply(text="too late", gate=Gate(name="never")))
    conversation = await client.create(name, settings={"run_timeout_s": 1})

    outcome = await client.run(conversation, "take your time")

    assert (outcome["status"], outcome["error"]["code"]) == ("timed_out", "run_timeout")


async def test_the_default_limits_are_ten_iterations_and_five_minutes(client: Client, play: Play) -> None:
    """R7, R8: the limits of the specification are the defaults."""
    conversation = await client.create(play(ScriptedReply(text="ok")))
    await client.run(conversation, "hi")

    [started] = client.events(conversation, "run.started")

    assert started["data"]["limits"] == {"max_iterations": 10, "run_timeout_s": 300.0}
