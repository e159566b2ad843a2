"""Histories with golden requests, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import ModelRequest
from banksman.contracts.messages import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    TextPart,
    ToolMessage,
    ToolProtocol,
    UserMessage,
)
from banksman.contracts.model_options import ModelOptions
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult, failed
from banksman.prompting.enhance import enhance

TOOLS = (
    ToolDefinition(
        name="bash",
        description="Runs a command in the workspace.",
        category="workspace",
        input_schema={
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command line."}},
            "required": ["command"],
        },
        requires_approval=True,
    ),
    ToolDefinition(
        name="read_file",
        description="Reads a text file.",
        category="workspace",
        input_schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    ),
    ToolDefinition(name="ping", description="Takes nothing."),
)

OPTIONS = ModelOptions(max_tokens=1000, temperature=0.5)


def user(text: str, number: int = 1) -> UserMessage:
    return UserMessage(message_id=f"u{number}", content=text)


def assistant(text: str | None, *calls: ToolCall, number: int = 1, **fields: Any) -> AssistantMessage:
    return AssistantMessage(message_id=f"a{number}", content=text, calls=calls, **fields)


def result(call: ToolCall, **content: Any) -> ToolMessage:
    stored = ToolResult.model_validate({"tool_call_id": call.id, "content": {"success": True, **content}})
    return ToolMessage(name=call.name, result=stored)


LS = ToolCall(id="k1", name="bash", arguments={"command": "ls"}, provider_call_id="call_1")
READ = ToolCall(id="k2", name="read_file", arguments={"path": "notes.txt"}, provider_call_id="call_2")
PING = ToolCall(id="k3", name="ping")
LISTED = result(LS, exit_code=0, stdout="notes.txt\n", stderr="")
NOTES = result(READ, path="notes.txt", content="Buy milk.\nCafé: 3 €\n")

THINKING = {
    "anthropic": {"thinking": [{"type": "thinking", "thinking": "Two at once.", "signature": "SIGNATURE"}]},
    "openai": {"reasoning_content": "Two at once."},
}


@dataclass(frozen=True)
class History:
    """The input of a model request."""

    messages: tuple[Message, ...]
    protocol: ToolProtocol = "native"
    tools: tuple[ToolDefinition, ...] = TOOLS
    options: ModelOptions = OPTIONS

    def request(self, model: str) -> ModelRequest:
        """Return the request as a model step prepares it."""
        system = enhance("You keep notes.", self.tools, self.protocol, mermaid=False).text
        request = ModelRequest(model, system, self.messages, self.tools, self.options, "c1")
        return protocol_for(self.protocol).prepare(request)


def histories(vendor: str, signature: str) -> Mapping[str, History]:
    """Return all histories.

    Args:
        vendor: The provider of the replies that contain provider state.
        signature: The signature of their thinking.
    """
    own = {"provider": vendor, "provider_state": _signed(THINKING.get(vendor), signature)}
    foreign = {"provider": "other", "provider_state": {"thinking": "Not for you."}}
    as_text = assistant("First I look.", LS, protocol="json_text")
    return {
        "one message": History((user("What do I have to do?"),)),
        "no options": History((user("hello"),), options=ModelOptions()),
        "no tools": History((user("hello"),), tools=()),
        "no tools any more": History((user("hi"), assistant(None, LS), LISTED, user("so?", 2)), tools=()),
        "parallel calls": History(
            (user("go"), assistant("I look.", LS, READ, PING), LISTED, NOTES, result(PING))
        ),
        "failed results": History((user("go"), assistant(None, LS, READ), *_failures())),
        "a lost result": History((user("go"), assistant(None, LS, READ), NOTES, user("and?", 2))),
        "images and files": History((UserMessage(message_id="u1", content=_parts()),)),
        "reasoning goes back": History((user("go"), assistant("So.", LS, READ, **own), LISTED, NOTES)),
        "foreign reasoning stays": History((user("go"), assistant(None, LS, **foreign), LISTED)),
        "steered": History(
            (user("go"), assistant(None, LS), LISTED, user("stop that", 2), user("please", 3))
        ),
        "several turns": History(
            (
                user("1"),
                assistant("one"),
                user("2", 2),
                assistant("two", number=2),
                user("3", 3),
                assistant(" ", number=3),
            )
        ),
        "json text": History((user("go"), as_text, LISTED), protocol="json_text"),
        "json text corrected": History(
            (user("go"), assistant('{"tool": "bash"', protocol="json_text"), user("Write it anew.", 2)),
            protocol="json_text",
        ),
        "native after json text": History((user("go"), as_text, LISTED, assistant("Done."), user("more", 2))),
        "json text after native": History(
            (user("go"), assistant("I look.", LS, READ), LISTED, NOTES), protocol="json_text"
        ),
        "strange names": History((user("go"), assistant(None, _strange()), result(_strange()))),
        "empty messages": History((user(" "), assistant(""), UserMessage(message_id="u2", content=()))),
    }


def _failures() -> tuple[ToolMessage, ...]:
    denied = failed(LS.id, "denied", "The policy of this assistant does not allow this call of bash.")
    timeout = failed(READ.id, "timeout", "It took longer than 60 s.")
    return ToolMessage(name="bash", result=denied), ToolMessage(name="read_file", result=timeout)


def _parts() -> tuple[TextPart | ImagePart | FilePart, ...]:
    return (
        TextPart(text="What is this?"),
        ImagePart(url="data:image/png;base64,iVBORw0KGgo="),
        ImagePart(url="data:image/tiff;base64,SUkqAA=="),
        ImagePart(url="https://example.org/cat.jpeg"),
        ImagePart(url="pictures/cat.png"),
        FilePart(path="notes.txt"),
    )


def _strange() -> ToolCall:
    return ToolCall(id="k4", name="no such tool!", arguments={"ö": [None]}, provider_call_id="not valid")


def _signed(state: Any, signature: str) -> Any:
    if not state or "thinking" not in state:
        return state
    return {"thinking": [{**block, "signature": signature} for block in state["thinking"]]}
