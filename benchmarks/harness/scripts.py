"""The scripted models of the benchmarks. They reply at once: the rest of the time is that of the system."""

from __future__ import annotations

from banksman.model_server import Reply, Script, ToolCall

CALLS = 3
"""Tool calls of one run, each in a reply of its own; the last of its four replies is text."""
PACED_CALLS = 40
PACED_EVENTS_PER_S = 20
_EVENTS_PER_CALL = 4
"""The reply, the request, its result and the next iteration."""
FINAL = "Six."
"""The text of the last reply."""


def scripts() -> dict[str, Script]:
    """Return the scripts by name: `add` calls a tool over NATS, `bash` one in the sandbox, `text` none.

    `paced` calls a tool again and again, so that its conversation has 20 events a second.
    """
    add = [ToolCall(name="add", arguments={"a": number, "b": number}) for number in range(CALLS)]
    bash = [ToolCall(name="bash", arguments={"command": "true"}) for _ in range(CALLS)]
    found = {
        name: Script(replies=(*(Reply(tool_calls=(call,)) for call in calls), Reply(text=FINAL)))
        for name, calls in (("add", add), ("bash", bash))
    }
    paced = Reply(tool_calls=(add[0],), first_delay_s=_EVENTS_PER_CALL / PACED_EVENTS_PER_S)
    found["paced"] = Script(replies=(*(paced for _ in range(PACED_CALLS)), Reply(text=FINAL)))
    return {**found, "text": Script(replies=(Reply(text="A short text in a few chunks."),))}


def model_name(script: str) -> str:
    """Return the name of a scripted model for assistants."""
    return f"openai:scripted/{script}"
