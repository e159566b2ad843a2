"""Amazon Bedrock: ConverseStream in front of a Claude model."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import Any

import botocore.session
from aiohttp import web
from botocore.model import OperationModel
from botocore.validate import ParamValidator

from tests.support.vendors.base import (
    CHARS_PER_TOKEN,
    Json,
    Prompt,
    Refusal,
    StandIn,
    Turn,
    pieces,
    signature,
    tokens,
)


@cache
def operation() -> OperationModel:
    return (
        botocore.session.get_session().get_service_model("bedrock-runtime").operation_model("ConverseStream")
    )


class Bedrock(StandIn):
    """See https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html."""

    name = "Bedrock"
    vendor = "bedrock"
    api = "bedrock"
    prefix = ""
    model = "anthropic.claude-sonnet-4-5-20250929-v1:0"
    content_type = "application/vnd.amazon.eventstream"

    @classmethod
    def entry(cls, url: str) -> Json:
        """Return an entry without a key, which the SDK sends over HTTPS only; it signs requests instead."""
        return {name: value for name, value in super().entry(url).items() if name != "api_key"}

    def refusal(self, message: str, *, status: int = 400, kind: str = "ValidationException") -> Refusal:
        return Refusal(status, {"message": message}, {"x-amzn-ErrorType": kind})

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/model/{model}/converse-stream", self.serve)

    def check(self, body: Json) -> None:
        shape = operation().input_shape
        report = ParamValidator().validate({"modelId": self.model, **body}, shape)
        if report.has_errors():
            raise self.refusal(report.generate_report())
        if (found := _pattern_problem(body, shape, "")) is not None:
            raise self.refusal(f"1 validation error detected: {found}")
        self._check_tools(body)
        self._check_messages(body)
        count = len(json.dumps(body["messages"])) // CHARS_PER_TOKEN
        if count > self.context_tokens:
            raise self.refusal(
                f"The model returned the following errors: prompt is too long: {count} tokens > "
                f"{self.context_tokens} maximum"
            )

    def _check_tools(self, body: Json) -> None:
        tools = (body.get("toolConfig") or {}).get("tools") or ()
        for index, tool in enumerate(tools):
            schema = (tool.get("toolSpec") or {}).get("inputSchema", {}).get("json", {"type": "object"})
            if schema.get("type") != "object":
                raise self.refusal(
                    f"The value at toolConfig.tools.{index}.toolSpec.inputSchema.json.type must be one of "
                    f"the following: object."
                )
            if any(word in schema for word in ("oneOf", "allOf", "anyOf")):
                raise self.refusal(
                    f"The model returned the following errors: tools.{index}.custom.input_schema: "
                    f"input_schema does not "
                    "support oneOf, allOf, or anyOf at the top level"
                )
        used = [block for one in body["messages"] for block in one["content"] if "toolUse" in block]
        if used and not tools:
            raise self.refusal(
                "The toolConfig field must be defined when using toolUse and toolResult content blocks."
            )

    def _check_messages(self, body: Json) -> None:
        expected, open_ids = "user", set[str]()
        for index, message in enumerate(body["messages"]):
            if message["role"] != expected:
                raise self.refusal(
                    "A conversation must start with a user message. Try again with a conversation that "
                    "starts with a user message."
                    if index == 0
                    else "A conversation must alternate between user and assistant roles."
                )
            expected = "assistant" if expected == "user" else "user"
            if not message["content"]:
                raise self.refusal(f"The content field in the Message object at messages.{index} is empty.")
            for position, block in enumerate(message["content"]):
                self._check_block(f"messages.{index}.content.{position}", block)
            results = {
                block["toolResult"]["toolUseId"] for block in message["content"] if "toolResult" in block
            }
            if results != open_ids:
                raise self.refusal(
                    f"Expected toolResult blocks at messages.{index}.content for the following Ids: "
                    f"{', '.join(sorted(open_ids))}"
                )
            open_ids = {block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block}

    def _check_block(self, place: str, block: Json) -> None:
        if "text" in block and not block["text"].strip():
            raise self.refusal(
                f"The text field in the ContentBlock object at {place} is blank. Add text to the text field."
            )
        reasoning = (block.get("reasoningContent") or {}).get("reasoningText")
        if reasoning and reasoning.get("signature") != signature(reasoning["text"]):
            raise self.refusal(
                f"The model returned the following errors: {place}: Invalid `signature` in `thinking` block"
            )

    def read(self, body: Json) -> Prompt:
        messages = body["messages"]
        last = max(i for i, one in enumerate(messages) if one["role"] == "user" and _text(one["content"]))
        blocks = [block for one in messages for block in one["content"]]
        extra = body.get("additionalModelRequestFields") or {}
        return Prompt(
            system=_text(body.get("system") or []),
            user=_text(messages[last]["content"]),
            results=tuple(
                json.dumps(block["toolResult"]["content"])
                for one in messages[last + 1 :]
                for block in one["content"]
                if "toolResult" in block
            ),
            images=tuple(block["image"]["source"]["bytes"] for block in blocks if "image" in block),
            tools={
                tool["toolSpec"]["name"]: tool["toolSpec"]["inputSchema"]["json"]
                for tool in (body.get("toolConfig") or {}).get("tools") or ()
                if "toolSpec" in tool
            },
            schema=None,
            effort="high" if _thinks(extra) else None,
            parallel=True,
            text=json.dumps(body, ensure_ascii=False),
        )

    async def stream(self, body: Json, turn: Turn) -> AsyncIterator[bytes]:
        yield _message("messageStart", {"role": "assistant"})
        thinks = _thinks(body.get("additionalModelRequestFields") or {})
        for index, (start, deltas) in enumerate(self._blocks(turn, thinks=thinks)):
            if start is not None:
                yield _message("contentBlockStart", {"start": start, "contentBlockIndex": index})
            for delta in deltas:
                yield _message("contentBlockDelta", {"delta": delta, "contentBlockIndex": index})
            yield _message("contentBlockStop", {"contentBlockIndex": index})
        if turn.breaks_with:
            yield _message("modelStreamErrorException", {"message": turn.breaks_with}, kind="exception")
            return
        reason = {"length": "max_tokens", "filter": "content_filtered"}.get(
            turn.finish, "tool_use" if turn.calls else "end_turn"
        )
        yield _message("messageStop", {"stopReason": reason})
        read, written = tokens(json.dumps(body)), tokens(turn.text + str(turn.calls))
        usage: Json = {"inputTokens": read, "outputTokens": written, "totalTokens": read + written}
        if '"cachePoint"' in json.dumps(body):
            usage["cacheReadInputTokens"] = self.cached_tokens(
                json.dumps([body.get("system"), body.get("toolConfig")])
            )
        yield _message("metadata", {"usage": usage, "metrics": {"latencyMs": 1}})

    def _blocks(self, turn: Turn, *, thinks: bool) -> Iterator[tuple[Json | None, list[Json]]]:
        if turn.reasoning and thinks:
            deltas: list[Json] = [{"reasoningContent": {"text": piece}} for piece in pieces(turn.reasoning)]
            yield None, [*deltas, {"reasoningContent": {"signature": signature(turn.reasoning)}}]
        if turn.text:
            yield None, [{"text": piece} for piece in pieces(turn.text)]
        for call in turn.calls:
            start = {"toolUse": {"toolUseId": self.new_id("tooluse_"), "name": call.name}}
            yield start, [{"toolUse": {"input": piece}} for piece in pieces(json.dumps(call.arguments), 7)]


def _thinks(extra: Json) -> bool:
    return any(name in extra for name in ("thinking", "reasoning_config"))


def _text(blocks: list[Json]) -> str:
    return "\n".join(block["text"] for block in blocks if "text" in block)


def _pattern_problem(value: Any, shape: Any, path: str) -> str | None:
    """Check the patterns, lengths and enums of the service model, which the SDK does not check."""
    found: Iterator[str | None]
    match shape.type_name:
        case "structure" if isinstance(value, dict) and not shape.metadata.get("document"):
            found = (
                _pattern_problem(value[k], m, f"{path}.{k}") for k, m in shape.members.items() if k in value
            )
        case "list":
            found = (
                _pattern_problem(one, shape.member, f"{path}.{i + 1}.member") for i, one in enumerate(value)
            )
        case "string" if isinstance(value, str):
            pattern, most = shape.metadata.get("pattern"), shape.metadata.get("max")
            wrong = (pattern and not re.fullmatch(pattern, value)) or (most and len(value) > most)
            wrong = (
                wrong or (shape.enum and value not in shape.enum) or len(value) < shape.metadata.get("min", 0)
            )
            text = f"Value '{value}' at '{path}' failed to satisfy constraint: {shape.metadata}"
            return text if wrong else None
        case _:
            return None
    return next((one for one in found if one is not None), None)


def _message(name: str, payload: Json, kind: str = "event") -> bytes:
    """Return a message of the format `application/vnd.amazon.eventstream`."""
    type_header = ":exception-type" if kind == "exception" else ":event-type"
    fields = {type_header: name, ":content-type": "application/json", ":message-type": kind}
    headers = b"".join(
        bytes([len(key)]) + key.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for key, value in fields.items()
    )
    data = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(data), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + data
    return message + struct.pack(">I", zlib.crc32(message))
