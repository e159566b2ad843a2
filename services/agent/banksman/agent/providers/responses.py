"""OpenAI's Responses API: requests and the events of their replies.

Nothing is stored at the vendor: each request has the whole history, with the encrypted reasoning of earlier
replies. https://platform.openai.com/docs/guides/reasoning
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, assert_never

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers import exchanges
from banksman.agent.providers.base import DeltaSink
from banksman.agent.providers.collect import ReplyBuilder, as_tokens
from banksman.agent.providers.faults import TransientFault
from banksman.agent.providers.openai_request import EMPTY_MESSAGE, reply_format
from banksman.agent.providers.profiles import Profile, with_profile
from banksman.agent.providers.state import MAX_STATE_CHARS
from banksman.agent.providers.untyped import as_count, as_list, as_object, as_text
from banksman.contracts.events import FinishReason
from banksman.contracts.messages import AssistantMessage, Message, Usage, UserMessage
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.runs.outcome import message_json

PATH = "responses"
OUTPUT_FIELD = "output"
"""The field of a state with the items of a reply in order, without the texts that the reply itself has."""
FAILED = "response.failed"
ENDS = frozenset({"response.completed", "response.incomplete", FAILED})
"""The types of the last event of a stream."""

_INCOMPLETE: dict[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "content_filter"}


def body(request: ModelRequest, profile: Profile) -> dict[str, Any]:
    """Return the body of a streamed request without storage at the vendor."""
    request = with_profile(request, profile)
    options = request.options
    arguments: dict[str, Any] = {
        "model": request.model,
        "input": list(_input(request, profile)),
        "stream": True,
        "store": False,
    }
    if request.system:
        arguments["instructions"] = request.system
    if profile.encrypted_reasoning:
        arguments["include"] = ["reasoning.encrypted_content"]
    if request.tools:
        # `strict` is on by default, and refuses schemas with optional properties.
        arguments["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": {**tool.input_schema},
                "strict": False,
            }
            for tool in request.tools
        ]
        if options.parallel_tool_calls is not None:
            arguments["parallel_tool_calls"] = options.parallel_tool_calls
    if options.temperature is not None:
        arguments["temperature"] = options.temperature
    if options.max_tokens is not None:
        arguments["max_output_tokens"] = options.max_tokens
    reasoning: dict[str, str] = {"effort": options.reasoning_effort} if options.reasoning_effort else {}
    if profile.reasoning_summary and options.reasoning_effort != "none":
        reasoning["summary"] = "auto"
    if reasoning:
        arguments["reasoning"] = reasoning
    if options.response_schema is not None:
        arguments["text"] = {"format": {"type": "json_schema", **reply_format(options.response_schema)}}
    return arguments


def wrote(messages: Iterable[Message]) -> bool:
    """Return whether this API wrote one of the messages, whose states are those of this provider."""
    return any(
        isinstance(one, AssistantMessage) and OUTPUT_FIELD in (one.provider_state or {}) for one in messages
    )


def _input(request: ModelRequest, profile: Profile) -> Iterator[dict[str, Any]]:
    for item in exchanges.paired(request.messages, profile.call_id):
        match item:
            case UserMessage():
                parts = exchanges.sent_parts(item.content) or [EMPTY_MESSAGE]
                yield {"role": "user", "content": [_part(part) for part in parts]}
            case exchanges.ModelExchange():
                yield from _output(item)
                for call in item.calls:
                    output = message_json(call.message)
                    yield {"type": "function_call_output", "call_id": call.id, "output": output}
            case _:
                assert_never(item)


def _part(part: exchanges.SentPart) -> dict[str, Any]:
    match part:
        case str():
            return {"type": "input_text", "text": part}
        case exchanges.InlineImage() | exchanges.LinkedImage():
            return {"type": "input_image", "image_url": part.url, "detail": "auto"}
        case exchanges.InlineDocument():
            return {"type": "input_file", "filename": "document.pdf", "file_data": part.url}
        case _:
            assert_never(part)


def _output(exchange: exchanges.ModelExchange) -> Iterator[dict[str, Any]]:
    """Yield the items of a reply: those that the vendor wrote, in their order, or its text and its calls."""
    text = exchange.reply.content or ""
    written = as_list((exchange.reply.provider_state or {}).get(OUTPUT_FIELD))
    items = [dict(as_object(item)) for item in written]
    calls = iter(exchange.calls)
    if sum(item.get("type") == "function_call" for item in items) != len(exchange.calls):
        items = []  # The vendor refuses reasoning without the item that followed it.
    for item in items:
        match item.get("type"):
            case "function_call":
                yield item | _call(next(calls))
            case "message" if "content" not in item:
                yield item | {"content": [{"type": "output_text", "text": text, "annotations": []}]}
            case _:
                yield item
    if items:
        return
    if text.strip():
        yield {"role": "assistant", "content": text}
    for call in exchange.calls:
        yield _call(call)


def _call(call: exchanges.CallWithResult) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}


class ResponsesReader:
    """Reads the events of one streamed reply. Events of other types are ignored."""

    def __init__(self, deltas: DeltaSink) -> None:
        self._builder = ReplyBuilder(deltas)
        self._items: dict[int, JsonObject] = {}
        """The complete items, while all of them fit into a state."""
        self._items_chars = 0
        self._done: set[int] = set()
        self._streamed: set[int] = set()
        """The items whose text or arguments arrived in pieces."""
        self._response: dict[str, Any] = {}
        self._end = ""

    @property
    def full(self) -> bool:
        return self._builder.full

    @property
    def ended(self) -> bool:
        return bool(self._end)

    async def take(self, event: dict[str, Any]) -> None:
        index, kind = as_count(event.get("output_index")), as_text(event.get("type"))
        if event.get("object") == "response":  # The whole reply instead of a stream.
            event, kind = {"response": event}, f"response.{as_text(event.get('status'))}"
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                self._streamed.add(index)
                await self._builder.add_text(as_text(event.get("delta")))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                await self._builder.add_reasoning(as_text(event.get("delta")))
            case "response.reasoning_summary_part.added" if as_count(event.get("summary_index")):
                await self._builder.add_reasoning("\n\n")
            case "response.output_item.added":
                item = as_object(event.get("item"))
                if item.get("type") == "function_call":
                    id, name = as_text(item.get("call_id")), as_text(item.get("name"))
                    self._builder.add_call(index, id=id, name=name)
            case "response.function_call_arguments.delta":
                self._streamed.add(index)
                self._builder.add_call(index, arguments=as_text(event.get("delta")))
            case "response.output_item.done":
                await self._take_item(index, as_object(event.get("item")))
            case _ if kind in ENDS:
                self._end, self._response = kind, as_object(event.get("response"))
                for at, item in enumerate(as_list(self._response.get("output"))):
                    await self._take_item(at, as_object(item))
            case _:
                pass

    async def _take_item(self, index: int, item: JsonObject) -> None:
        """Keep a complete item, and add what did not arrive in pieces."""
        if index in self._done or self.full:
            return
        self._done.add(index)
        self._items_chars += len(str(item))
        if self._items_chars <= MAX_STATE_CHARS:
            self._items[index] = item
        whole = index not in self._streamed
        match item.get("type"):
            case "function_call":
                arguments = as_text(item.get("arguments")) if whole else None
                id, name = as_text(item.get("call_id")), as_text(item.get("name"))
                self._builder.add_call(index, id=id, name=name, arguments=arguments)
            case "message" if whole:
                for part in map(as_object, as_list(item.get("content"))):
                    await self._builder.add_text(as_text(part.get("text")) or as_text(part.get("refusal")))
            case _:
                pass

    def reply(self) -> ModelReply:
        """Return the reply; raise `TransientFault` if the stream ended before its last event."""
        if not self._end and not self.full:
            raise TransientFault("the stream ended before the response was complete")
        raw = as_text(as_object(self._response.get("incomplete_details")).get("reason"))
        reason: FinishReason = "tool_calls" if self._builder.last_call >= 0 else "stop"
        if self._end == "response.incomplete":
            reason = _INCOMPLETE.get(raw, "unknown")
        usage = _usage(as_object(self._response.get("usage")))
        return self._builder.reply(reason, raw or self._end, usage, self._state())

    def _state(self) -> JsonObject | None:
        items = [item for _, item in sorted(self._items.items())]
        if len(items) < len(self._done) or not any(item.get("type") == "reasoning" for item in items):
            return None
        messages = sum(item.get("type") == "message" for item in items)
        output: list[JsonValue] = [_without_texts(item, one_message=messages == 1) for item in items]
        return {OUTPUT_FIELD: output}


def _without_texts(item: JsonObject, *, one_message: bool) -> JsonObject:
    """Return an item without what the reply has: the arguments of a call, and the only text."""
    kind = item.get("type")
    left_out = {"name", "arguments"} if kind == "function_call" else set[str]()
    if kind == "message" and one_message:
        left_out = {"content"}
    return {name: value for name, value in item.items() if name not in left_out}


def _usage(usage: dict[str, Any]) -> Usage:
    details = as_object(usage.get("input_tokens_details"))
    return Usage(
        input_tokens=as_tokens(usage.get("input_tokens")),
        output_tokens=as_tokens(usage.get("output_tokens")),
        cached_tokens=as_tokens(details.get("cached_tokens")),
    )
