"""The Chat Completions format, which most vendors copy, each with its own rules."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

from aiohttp import web

from tests.support.vendors.base import (
    Call,
    Json,
    Prompt,
    Refusal,
    StandIn,
    Turn,
    event,
    pieces,
    prompt_tokens,
    tokens,
)
from tests.support.vendors.strict import problem


class ChatStandIn(StandIn):
    """A strict server of the format. Subclasses state what their vendor does differently."""

    request_type: ClassVar[Any] = None
    """The vendor's type of requests; None if it publishes none."""
    tool_name: ClassVar[str] = r"[a-zA-Z0-9_-]{1,64}"
    max_tools: ClassVar[int] = 128
    call_id: ClassVar[str] = r"(?s).{1,64}"
    roles: ClassVar[frozenset[str]] = frozenset({"system", "developer", "user", "assistant", "tool"})
    content_lists: ClassVar[bool] = True
    """Whether the content of a message may be a list of parts."""
    empty_content: ClassVar[bool] = True
    """Whether messages may be empty."""
    finish_reasons: ClassVar[Json] = {"length": "length", "filter": "content_filter", "calls": "tool_calls"}
    reasoning_field: ClassVar[str | None] = "reasoning_content"
    """The field of reasoning in a delta; None writes it as `<think>` into the text."""

    def refusal(
        self, message: str, *, status: int = 400, code: Any = None, param: str | None = None
    ) -> Refusal:
        error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
        return Refusal(status, {"error": error})

    def overflow(self, count: int) -> Refusal:
        """The refusal of a prompt of `count` tokens."""
        return self.refusal(
            f"This model's maximum context length is {self.context_tokens} tokens. However, your messages "
            f"resulted in {count} tokens. Please reduce the length of the messages.",
            code="context_length_exceeded",
            param="messages",
        )

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post(f"{self.prefix}/chat/completions", self.serve)

    def check(self, body: Json) -> None:
        self.check_types(body)
        self.check_options(body)
        for index, tool in enumerate(body.get("tools") or ()):
            self.check_tool(index, tool["function"])
        if len(body.get("tools") or ()) > self.max_tools:
            raise self.too_many_tools(len(body["tools"]))
        self.check_messages(body["messages"])
        count = prompt_tokens(body["messages"])
        if count > self.context_tokens and not self.cuts_prompts:
            raise self.overflow(count)

    def check_types(self, body: Json) -> None:
        if self.request_type is not None and (found := problem(self.request_type, body)) is not None:
            raise self.wrong_type(*found)

    def wrong_type(self, place: str, text: str) -> Refusal:
        return self.refusal(f"Invalid request at '{place}': {text}", param=place)

    def check_options(self, body: Json) -> None:
        """Refuse options that the model does not take."""

    def too_many_tools(self, count: int) -> Refusal:
        return self.refusal(
            f"Invalid 'tools': array too long. Expected an array with maximum length {self.max_tools}, but "
            f"got an array with length {count} instead.",
            code="array_above_max_length",
            param="tools",
        )

    def check_tool(self, index: int, function: Json) -> None:
        if not re.fullmatch(self.tool_name, function["name"]):
            raise self.refusal(
                f"Invalid 'tools[{index}].function.name': string does not match pattern. Expected a string "
                "that matches the pattern '^[a-zA-Z0-9_-]+$'.",
                code="invalid_value",
                param=f"tools[{index}].function.name",
            )
        self.check_schema(function["name"], function.get("parameters"))

    def check_schema(self, name: str, schema: Any) -> None:
        """Refuse a schema of parameters that the vendor cannot use."""

    def check_messages(self, messages: list[Json]) -> None:
        for index, message in enumerate(messages):
            if message["role"] not in self.roles:
                raise self.wrong_role(index, message["role"])
            self.check_content(index, message)
            for call in message.get("tool_calls") or ():
                self.check_call(index, call)
        self.check_order(messages)

    def wrong_role(self, index: int, role: str) -> Refusal:
        return self.refusal(f"messages.{index}.role: unknown role {role!r}", param=f"messages.{index}.role")

    def check_content(self, index: int, message: Json) -> None:
        content = message.get("content")
        if isinstance(content, list):
            if not self.content_lists:
                raise self.refusal(
                    f"messages[{index}]: invalid type: sequence, expected a string", status=422
                )
            if not self.features.images and any(part["type"] == "image_url" for part in content):
                raise self.blind()
        if content is None and not message.get("tool_calls"):
            raise self.refusal(
                f"Invalid value for 'content': expected a string, got null. (messages.[{index}].content)"
            )
        if not self.empty_content and not content and not message.get("tool_calls"):
            raise self.refusal(f"messages.{index}.content must not be empty")

    def blind(self) -> Refusal:
        return self.refusal(
            "Invalid content type. image_url is only supported by certain models.", param="messages"
        )

    def check_call(self, index: int, call: Json) -> None:
        if not re.fullmatch(self.call_id, call["id"]):
            raise self.wrong_id(index, call["id"])
        arguments = json.loads(call["function"]["arguments"])
        if not isinstance(arguments, dict):
            raise self.refusal(f"messages.{index}: the arguments of a call must be an object")

    def wrong_id(self, index: int, call_id: str) -> Refusal:
        return self.refusal(
            f"Invalid 'messages[{index}].tool_calls[0].id': string too long. Expected a string with maximum "
            f"length 64, but got a string with length {len(call_id)} instead.",
            code="string_above_max_length",
        )

    def check_order(self, messages: list[Json]) -> None:
        """Refuse calls without results, and results without calls."""
        open_ids: list[str] = []
        for index, message in enumerate(messages):
            if message["role"] == "tool":
                if message["tool_call_id"] not in open_ids:
                    raise self.refusal(
                        "Invalid parameter: messages with role 'tool' must be a response to a preceding "
                        "message "
                        "with 'tool_calls'.",
                        param=f"messages.[{index}].role",
                    )
                open_ids.remove(message["tool_call_id"])
                continue
            if open_ids:
                raise self.unanswered(open_ids)
            open_ids = [call["id"] for call in message.get("tool_calls") or ()]
            if len(set(open_ids)) < len(open_ids):
                raise self.refusal(f"messages.[{index}].tool_calls: duplicate id")
        if open_ids:
            raise self.unanswered(open_ids)

    def unanswered(self, ids: list[str]) -> Refusal:
        return self.refusal(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: " + ", ".join(ids),
            param="messages",
        )

    def read(self, body: Json) -> Prompt:
        messages = body["messages"]
        last = max((i for i, one in enumerate(messages) if one["role"] == "user"), default=-1)
        schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema")
        parts = [part for one in messages for part in _parts(one)]
        return Prompt(
            system="\n".join(_text(one) for one in messages if one["role"] in ("system", "developer")),
            user=_text(messages[last]) if last >= 0 else "",
            results=tuple(_text(one) for one in messages[last + 1 :] if one["role"] == "tool"),
            images=tuple(_image(part) for part in parts if part["type"] == "image_url"),
            tools={
                tool["function"]["name"]: tool["function"].get("parameters") or {}
                for tool in body.get("tools") or ()
            },
            schema=schema,
            effort=body.get("reasoning_effort"),
            parallel=body.get("parallel_tool_calls") is not False and self.features.parallel_calls,
            text=json.dumps(body, ensure_ascii=False),
        )

    async def stream(self, body: Json, turn: Turn) -> AsyncIterator[bytes]:
        reasons = {"": "stop", **self.finish_reasons}
        reason = reasons[turn.finish or ("calls" if turn.calls else "")]
        yield self._chunk(body, self.first_delta())
        for delta in self._deltas(body, turn):
            yield self._chunk(body, delta)
        if turn.breaks_with:
            yield self.stream_error(turn.breaks_with)
            return
        prompt_tokens, cached = self._prompt_tokens(body)
        written = tokens(
            turn.text + turn.reasoning + "".join(json.dumps(one.arguments) for one in turn.calls)
        )
        usage = self.usage(prompt_tokens, cached, written, tokens(turn.reasoning) if turn.reasoning else 0)
        for last in self.last_chunks(body, self._head(body), reason, usage):
            yield event(last)
        yield event("[DONE]")

    def _deltas(self, body: Json, turn: Turn) -> Iterator[Json]:
        yield from self.reasoning_deltas(turn.reasoning)
        yield from ({"content": piece} for piece in pieces(turn.text))
        for index, call in enumerate(turn.calls):
            yield from self.call_deltas(index, call, self.new_call_id(body, index))

    def first_delta(self) -> Json:
        return {"role": "assistant", "content": ""}

    def reasoning_deltas(self, text: str) -> Iterator[Json]:
        if text and self.reasoning_field is None:
            yield from ({"content": piece} for piece in pieces(f"<think>\n{text}\n</think>\n\n", 5))
            return
        yield from ({"content": None, self.reasoning_field: piece} for piece in pieces(text))

    def call_deltas(self, index: int, call: Call, call_id: str) -> Iterator[Json]:
        """Yield a call as OpenAI does: name and id first, then fragments of the arguments."""
        function = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        for piece in pieces(json.dumps(call.arguments), 7):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}

    def new_call_id(self, body: Json, index: int) -> str:
        return self.new_id("call_")

    def stream_error(self, message: str) -> bytes:
        return event({"error": {"message": message, "type": "server_error", "param": None, "code": None}})

    def usage(self, prompt: int, cached: int, written: int, reasoning: int) -> Json:
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }

    def last_chunks(self, body: Json, head: Json, reason: str, usage: Json) -> Iterator[Json]:
        """Yield the last chunks as OpenAI does: the usage has a chunk without choices."""
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": None}
        if (body.get("stream_options") or {}).get("include_usage"):
            yield {**head, "choices": [], "usage": usage}

    def _prompt_tokens(self, body: Json) -> tuple[int, int]:
        text = json.dumps([body.get("tools"), body["messages"]])
        cached = self.cached_tokens(text) if self.features.caching else 0
        read = min(tokens(text), self.context_tokens) if self.cuts_prompts else tokens(text)
        return read, cached

    def _head(self, body: Json) -> Json:
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}

    def _chunk(self, body: Json, delta: Json) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return event({**self._head(body), "choices": [choice]})


def _parts(message: Json) -> list[Json]:
    content = message.get("content")
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content or ""}]


def _text(message: Json) -> str:
    return "\n".join(part["text"] for part in _parts(message) if part["type"] == "text")


def _image(part: Json) -> str:
    image = part["image_url"]
    url = image if isinstance(image, str) else image["url"]
    return url.partition("base64,")[2] or url
