"""Converts requests of OpenAI's Chat Completions and Anthropic's Messages to client frames.

The server has the prompt, the tools and the history of a conversation. These parts of a request are used: the
model, the last messages of the user, the system messages as the base of the prompt, and the options. If the
request names no conversation, earlier messages precede the user's message as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import Field

from banksman.contracts.assistants import ConversationSettings, RunOverrides
from banksman.contracts.errors import BadInput
from banksman.contracts.frames import ChatSend, ConversationCreate
from banksman.contracts.messages import Content, ImagePart, Part, Provenance, TextPart, text_of
from banksman.contracts.model_options import ModelOptions, ReasoningEffort, ResponseSchema
from banksman.contracts.wire import JsonObject, JsonValue, Stored, Token
from banksman.gateway.operation.errors import THREAD
from banksman.gateway.operation.parameters import RequestBody, creation_id

CLIENT_PROMPT = "client_prompt"
"""The variable with the client's system messages. The prompt is `{{client_prompt}}`, and values of variables
are inserted unchanged, so braces in the messages are not placeholders."""

EARLIER = "[Earlier messages of this conversation, as the client sent them:]"
CURRENT = "[The current message:]"
_GAP = "\n\n"
_TITLE_CHARS = 80

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class SentMessage(Stored):
    """A message of either format. Other fields are ignored."""

    role: Role
    content: str | tuple[JsonObject, ...] | None = None


class StreamOptions(Stored):
    """OpenAI's options of a stream."""

    include_usage: bool = False


class FormatSchema(Stored):
    """The schema of OpenAI's `response_format` and Anthropic's `output_config.format`."""

    schema_: ResponseSchema = Field(alias="schema")


class ResponseFormat(Stored):
    """OpenAI's form of the final reply: any text, or a JSON object that fits a schema."""

    type: Literal["text", "json_schema"]
    json_schema: FormatSchema | None = None


class OutputConfig(Stored):
    """Anthropic's form of the final reply and its reasoning effort."""

    effort: ReasoningEffort | None = None
    format: FormatSchema | None = None


class ChatBody(Stored):
    """The fields that both formats share, and Banksman's own fields. Unknown fields are ignored."""

    model_config = RequestBody.model_config | {"extra": "ignore"}

    model: str = Field(min_length=1, max_length=200)
    """`provider:model`, or the id of an assistant such as `default`."""
    messages: tuple[SentMessage, ...] = Field(min_length=1, max_length=10_000)
    stream: bool = False
    temperature: float | None = Field(default=None, ge=0, le=2)
    max_tokens: int | None = Field(default=None, gt=0)
    """Maximum output tokens of each reply of the model."""
    tools: tuple[JsonObject, ...] | None = None
    """Must be empty: the agent calls the server's tools."""
    conversation_id: Token | None = None
    """The conversation to continue; null starts a new one."""
    prompt_id: Token | None = None
    """The system prompt of a new conversation, in place of system messages."""
    variables: JsonObject = Field(default_factory=dict)


class ChatCompletionRequest(ChatBody):
    """OpenAI's Chat Completions."""

    max_completion_tokens: int | None = Field(default=None, gt=0)
    reasoning_effort: ReasoningEffort | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    """The final message fits this schema; the field `banksman` contains it as an object."""
    stream_options: StreamOptions | None = None
    n: Annotated[int | None, Field(ge=1, le=1)] = None


class MessagesRequest(ChatBody):
    """Anthropic's Messages."""

    system: str | tuple[JsonObject, ...] | None = None
    output_config: OutputConfig = OutputConfig()
    thread: JsonObject | None = None
    """Must be absent: later requests of a thread contain the new messages only."""


@dataclass(frozen=True, slots=True)
class ChatFrames:
    creation: ConversationCreate | None
    """Creates the conversation; None if the client names one."""
    message: ChatSend
    """Starts the run. With `creation`, the caller must set the id of the new conversation."""


@dataclass(frozen=True, slots=True)
class _Turn:
    role: Role
    content: Content


def read_chat(body: ChatCompletionRequest | MessagesRequest, request_id: str) -> ChatFrames:
    """Return the frames of a request; raise `BadInput` if a field is invalid."""
    if body.tools:
        expected = "no tools: the server calls its own. `/v1` forwards requests with tools to the vendor"
        raise BadInput("tools", None, expected)
    turns = [_Turn(message.role, _content(message.content, i)) for i, message in enumerate(body.messages)]
    system = [text_of(turn.content) for turn in turns if turn.role in ("system", "developer")]
    options = ModelOptions(max_tokens=body.max_tokens, temperature=body.temperature)
    match body:
        case MessagesRequest():
            if body.thread is not None:
                expected = "no thread: send the whole history, or the new messages with `conversation_id`"
                raise BadInput(THREAD, None, expected)
            system = [text_of(_content(body.system, None)), *system] if body.system else system
            options = options.model_copy(update=_output_options(body.output_config))
        case ChatCompletionRequest():
            options = options.model_copy(update=_completion_options(body))
    if system and body.prompt_id:
        raise BadInput("prompt_id", body.prompt_id, "either `prompt_id` or system messages")
    if body.prompt_id and body.conversation_id:
        raise BadInput("prompt_id", body.prompt_id, "no prompt: the conversation has one")
    content = _message([turn for turn in turns if turn.role not in ("system", "developer")], body)
    named = ":" in body.model or body.model == "demo"
    overrides = RunOverrides(
        model=body.model if named else None,
        options=options,
        system_prompt="{{" + CLIENT_PROMPT + "}}" if system else None,
    )
    message = ChatSend(
        type="chat.send",
        id=request_id,
        conversation_id=body.conversation_id or "new",
        content=content,
        overrides=overrides,
        variables=body.variables | ({CLIENT_PROMPT: _GAP.join(system)} if system else {}),
        provenance=Provenance.partly("client", _typed(body.messages)),
    )
    if body.conversation_id is not None:
        return ChatFrames(None, message)
    creation = ConversationCreate(
        type="conversation.create",
        id=creation_id(request_id),
        title=" ".join(text_of(turns[-1].content).split())[:_TITLE_CHARS],
        assistant="default" if named else body.model,
        system_prompt_id=body.prompt_id,
        settings=ConversationSettings(),
    )
    return ChatFrames(creation, message)


def _completion_options(body: ChatCompletionRequest) -> dict[str, Any]:
    wanted = body.response_format
    if wanted is not None and wanted.type == "json_schema" and wanted.json_schema is None:
        raise BadInput("response_format.json_schema", None, "an object with the `schema` of the reply")
    schema = None if wanted is None or wanted.type == "text" else wanted.json_schema
    return {
        "max_tokens": body.max_completion_tokens or body.max_tokens,
        "reasoning_effort": body.reasoning_effort,
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_schema": schema and schema.schema_,
    }


def _output_options(config: OutputConfig) -> dict[str, Any]:
    schema = config.format and config.format.schema_
    return {"reasoning_effort": config.effort, "response_schema": schema}


def _message(turns: list[_Turn], body: ChatBody) -> Content:
    """Return the user's last messages, after the earlier ones as text if the server does not have them."""
    start = len(turns)
    while start and turns[start - 1].role == "user":
        start -= 1
    if start == len(turns):
        raise BadInput("messages", None, "a last message with the role `user`")
    parts = [part for turn in turns[start:] for part in _parts(turn.content)]
    if start and body.conversation_id is None:
        earlier = (f"{turn.role}: {text_of(turn.content)}" for turn in turns[:start])
        parts.insert(0, TextPart(text=_GAP.join((EARLIER, *earlier, CURRENT))))
    if all(isinstance(part, TextPart) for part in parts):
        return text_of(tuple(parts))
    return tuple(parts)


def _typed(messages: Iterable[SentMessage]) -> Iterator[str]:
    """Yield the texts of the user's last messages, which may also contain results of the client's tools."""
    turns = (one for one in reversed(tuple(messages)) if one.role not in ("system", "developer"))
    for turn in takewhile(lambda one: one.role == "user", turns):
        for part in (
            ({"type": "text", "text": turn.content},) if isinstance(turn.content, str) else turn.content or ()
        ):
            match part:
                case {"type": "text" | "input_text", "text": str(text)}:
                    yield text
                case _:
                    pass


def _parts(content: Content) -> tuple[Part, ...]:
    return (TextPart(text=content),) if isinstance(content, str) else content


def _content(sent: str | tuple[JsonObject, ...] | None, index: int | None) -> Content:
    if sent is None or isinstance(sent, str):
        return sent or ""
    where = "system" if index is None else f"messages.{index}.content"
    try:
        return tuple(_part(part) for part in sent)
    except BadInput as error:
        raise BadInput(where, error.value, error.expected) from error


def _part(part: JsonObject) -> Part:
    match part:
        case {"type": "text" | "input_text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return ImagePart(url=url)
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return ImagePart(url=url)
        case {"type": "image", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}}:
            return ImagePart(url=f"data:{kind};base64,{data}", media_type=kind)
        case {"type": "tool_use", "name": str(name)}:
            return TextPart(text=f"[called {name}]")
        case {"type": "tool_result"}:
            return TextPart(text=f"[tool result] {_result_text(part.get('content'))}")
        case {"type": "thinking" | "redacted_thinking"}:
            return TextPart(text="")
        case _:
            raise BadInput("content", part.get("type"), "text, or an image as `image_url` or `image`")


def _result_text(content: JsonValue) -> str:
    if isinstance(content, list):
        texts: list[Any] = [part.get("text") for part in content if isinstance(part, dict)]
        return _GAP.join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""
