"""One conversation with a model through the adapters and protocols of agents, without an agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import (
    Final,
    LoadFile,
    Malformed,
    ModelReply,
    ModelRequest,
    RequestedCall,
    RequestedCalls,
)
from banksman.agent.providers.base import DeltaKind, Provider
from banksman.contracts.assistants import ModelOptions
from banksman.contracts.live_output import ModelPause
from banksman.contracts.messages import (
    AssistantMessage,
    Content,
    Message,
    ToolMessage,
    ToolProtocol,
    UserMessage,
)
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult, failed
from banksman.contracts.wire import JsonObject

MAX_REPLIES = 8
SYSTEM = "You are the assistant of a test. Follow the user's instructions exactly."

Execute = Callable[[str, JsonObject], JsonObject]
"""Returns the result of a call from the name of its tool and its arguments."""


@dataclass
class Pieces:
    """Collects the pieces of a reply."""

    text: dict[DeltaKind, str] = field(default_factory=dict[DeltaKind, str])

    async def write(self, kind: DeltaKind, text: str) -> None:
        self.text[kind] = self.text.get(kind, "") + text

    async def restart(self) -> None:
        self.text.clear()

    async def waiting(self, pause: ModelPause) -> None:
        """Ignore a pause between two attempts."""


@dataclass
class Talk:
    """A conversation; `provider` and `model` may change between two messages."""

    provider: Provider
    model: str
    tools: tuple[ToolDefinition, ...] = ()
    execute: Execute = lambda name, arguments: {"success": True}
    options: ModelOptions = field(default_factory=ModelOptions)
    system: str = SYSTEM
    protocol: ToolProtocol = "native"
    load: LoadFile | None = None
    """Loads the files of messages; None sends their paths."""
    deadline_s: float = 60.0
    history: list[Message] = field(default_factory=list[Message])
    replies: list[ModelReply] = field(default_factory=list[ModelReply])
    """All replies, oldest first."""
    reasoning: str = ""
    """The reasoning that clients see, of all replies."""

    async def say(self, content: Content) -> str:
        """Send a message of the user; return the final text of the model.

        Raises:
            BanksmanError: A request failed.
            RuntimeError: A reply attempts a call that cannot be read, or the calls do not end.
        """
        self.history.append(UserMessage(message_id=f"u{len(self.history)}", content=content))
        for _ in range(MAX_REPLIES):
            text = await self._step()
            if text is not None:
                return text
        raise RuntimeError(f"no final text after {MAX_REPLIES} replies")

    async def _step(self) -> str | None:
        protocol, pieces = protocol_for(self.protocol), Pieces()
        request = ModelRequest(
            self.model,
            self.system,
            tuple(self.history),
            self.tools,
            self.options,
            "conversation",
            self.load,
        )
        reply = await self.provider.complete(
            protocol.prepare(request), deltas=pieces, deadline_s=self.deadline_s
        )
        self.replies.append(reply)
        self.reasoning += pieces.text.get("reasoning", "")
        match protocol.read(reply, tools=self.tools):
            case Final(text=text):
                self._add(reply, text)
                return text
            case RequestedCalls(text=text, calls=requested):
                self._add(reply, text, requested)
                return None
            case Malformed(error=error):
                raise RuntimeError(error)

    def _add(self, reply: ModelReply, text: str | None, requested: Sequence[RequestedCall] = ()) -> None:
        number = len(self.history)
        calls = tuple(call_of(one, f"k{number}-{index}") for index, one in enumerate(requested))
        message = AssistantMessage(
            message_id=f"a{number}",
            content=text,
            calls=calls,
            protocol=self.protocol,
            provider=self.provider.name,
            provider_state=reply.provider_state,
        )
        self.history.append(message)
        for one, call in zip(requested, calls, strict=True):
            self.history.append(ToolMessage(name=call.name, result=self._result(one, call)))

    def _result(self, requested: RequestedCall, call: ToolCall) -> ToolResult:
        if requested.arguments_error is not None:
            return failed(call.id, "invalid_arguments", requested.arguments_error)
        return ToolResult(tool_call_id=call.id, content=self.execute(call.name, call.arguments))


def call_of(requested: RequestedCall, call_id: str) -> ToolCall:
    return ToolCall(
        id=call_id,
        name=requested.name,
        arguments=requested.arguments or {},
        provider_call_id=requested.provider_call_id,
        terminate=requested.terminate,
    )
