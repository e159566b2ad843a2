"""The scripted models of the benchmarks. They reply at once: the rest of the time is that of the system."""

from __future__ import annotations

from banksman.model_server import Reply, Script, ToolCall

CALLS = 3
"""Tool calls of one run, each in a reply of its own; the last of its four replies is text."""
FINAL = "Six."
"""The text of the last reply."""


def scripts() -> dict[str, Script]:
    """Return the scripts by name: `add` calls a tool over NATS, `bash` one in the sandbox, `text` none."""
    add = [ToolCall(name="add", arguments={"a": number, "b": number}) for number in range(CALLS)]
    bash = [ToolCall(name="bash", arguments={"command": "true"}) for _ in range(CALLS)]
    found = {
        name: Script(replies=(*(Reply(tool_calls=(call,)) for call in calls), Reply(text=FINAL)))
        for name, calls in (("add", add), ("bash", bash))
    }
    return {**found, "text": Script(replies=(Reply(text="A short text in a few chunks."),))}


def model_name(script: str) -> str:
    """Return the name of a scripted model for assistants."""
    return f"openai:scripted/{script}"
