"""The scripted models of the benchmarks, which reply at once, so that only the system takes time."""

from __future__ import annotations

from tests.support.scripted_models import Script, ScriptedCall, ScriptedReply

CALLS = 3
"""Tool calls of one run, each in its own reply; the fourth and last reply is text."""
PACED_CALLS = 40
PACED_EVENTS_PER_S = 20
_EVENTS_PER_CALL = 4
"""Events per call: the reply, the request, its result and the next iteration."""
FINAL = "Six."
"""The text of the last reply."""


def scripts() -> dict[str, Script]:
    """Return the scripts by name: `add` calls a tool over NATS, `bash` one in the sandbox, `text` none.

    `paced` calls a tool repeatedly, so that its conversation has 20 events per second.
    """
    add = [ScriptedCall(name="add", arguments={"a": number, "b": number}) for number in range(CALLS)]
    bash = [ScriptedCall(name="bash", arguments={"command": "true"}) for _ in range(CALLS)]
    found = {
        name: Script(
            replies=(*(ScriptedReply(tool_calls=(call,)) for call in calls), ScriptedReply(text=FINAL))
        )
        for name, calls in (("add", add), ("bash", bash))
    }
    paced = ScriptedReply(tool_calls=(add[0],), first_delay_s=_EVENTS_PER_CALL / PACED_EVENTS_PER_S)
    found["paced"] = Script(replies=(*(paced for _ in range(PACED_CALLS)), ScriptedReply(text=FINAL)))
    return {**found, "text": Script(replies=(ScriptedReply(text="A short text in a few chunks."),))}


def model_name(script: str) -> str:
    """Return the name of a scripted model for assistants."""
    return f"openai:scripted/{script}"
