"""The scripted models of the benchmarks. They reply at once: the rest of the time is that of the system."""

from __future__ import annotations

from banksman.model_server import Reply, Script, ToolCall

CALLS = 3
"""Tool calls of one run, each in a reply of its own; the last of its four replies is text."""
FINAL = "Six."
"""The text of the last reply."""


def scripts() -> dict[str, Script]:
    """Return the scripts by name: `add` calls a tool over NATS, and `bash` one in the sandbox."""
    add = [ToolCall(name="add", arguments={"a": number, "b": number}) for number in range(CALLS)]
    bash = [ToolCall(name="bash", arguments={"command": "true"}) for _ in range(CALLS)]
    return {
        name: Script(replies=(*(Reply(tool_calls=(call,)) for call in calls), Reply(text=FINAL)))
        for name, calls in (("add", add), ("bash", bash))
    }


def model_name(script: str) -> str:
    """Return the name of a scripted model for assistants."""
    return f"openai:scripted/{script}"
