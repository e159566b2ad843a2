"""Anthropic's Messages API."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

from aiohttp import web
from anthropic.types.message_create_params import MessageCreateParamsStreaming

from tests.support.vendors.base import (
    CHARS_PER_TOKEN,
    Json,
    Prompt,
    Refusal,
    StandIn,
    Turn,
    event,
    pieces,
    prompt_tokens,
    signature,
    tokens,
)
from tests.support.vendors.strict import problem

LOOKBACK_BLOCKS = 20
"""Blocks before a mark in which the cache is searched: https://platform.claude.com/docs/en/build-with-claude/prompt-caching"""


class Anthropic(StandIn):
    """See https://platform.claude.com/docs/en/api/messages."""

    name = "Anthropic"
    vendor = "anthropic"
    api = "anthropic"
    prefix = ""
    model = "claude-opus-4-5"

    def __init__(self, brain: Any) -> None:
        super().__init__(brain)
        self._written: dict[str, list[Json]] = {}
        """The blocks of each reply with calls, by the id of its first call."""
        self._cached: set[str] = set()

    def refusal(self, message: str, *, status: int = 400, type: str = "invalid_request_error") -> Refusal:
        body = {
            "type": "error",
            "error": {"type": type, "message": message},
            "request_id": self.new_id("req_"),
        }
        return Refusal(status, body)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/messages", self.serve)

    def check(self, body: Json) -> None:
        if (found := problem(MessageCreateParamsStreaming, body)) is not None:
            raise self.refusal(f"{found[0]}: {found[1]}")
        self._check_options(body)
        for index, tool in enumerate(body.get("tools") or ()):
            self._check_tool(index, tool)
        self._check_messages(body)
        count = prompt_tokens(body["messages"])
        if count > self.context_tokens:
            raise self.refusal(f"prompt is too long: {count} tokens > {self.context_tokens} maximum")

    def _check_options(self, body: Json) -> None:
        thinking = body.get("thinking") or {}
        if thinking.get("type") == "enabled" and thinking["budget_tokens"] >= body["max_tokens"]:
            raise self.refusal("`max_tokens` must be greater than `thinking.budget_tokens`.")
        if thinking.get("type") == "enabled" and thinking["budget_tokens"] < 1024:
            raise self.refusal(
                "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
            )
        if thinking.get("type") in ("enabled", "adaptive") and body.get("temperature") not in (None, 1):
            raise self.refusal(
                "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode."
            )
        marks = json.dumps(body).count('"cache_control": {')
        if marks > 4:
            raise self.refusal(f"A maximum of 4 blocks with cache_control may be provided. Found {marks}.")

    def _check_tool(self, index: int, tool: Json) -> None:
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", tool["name"]):
            raise self.refusal(
                f"tools.{index}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
            )
        schema = tool["input_schema"]
        if schema.get("type") != "object":
            raise self.refusal(f"tools.{index}.custom.input_schema.type: Field required")
        if not all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name) for name in schema.get("properties") or ()):
            raise self.refusal(
                f"tools.{index}.custom.input_schema.properties: Property keys should match pattern "
                "'^[a-zA-Z0-9_.-]{1,64}$'"
            )
        if any(word in schema for word in ("oneOf", "allOf", "anyOf")):
            raise self.refusal(
                f"tools.{index}.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf "
                f"at the top level"
            )

    def _check_messages(self, body: Json) -> None:
        messages = body["messages"]
        if not messages or messages[0]["role"] != "user":
            raise self.refusal('messages: first message must use the "user" role')
        open_ids: list[str] = []
        for index, message in enumerate(messages):
            blocks = _blocks(message)
            if not blocks:
                raise self.refusal(f"messages.{index}: all messages must have non-empty content")
            self._check_blocks(index, blocks)
            open_ids = self._check_results(index, blocks, open_ids)
            if message["role"] == "assistant":
                open_ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
                self._check_thinking(index, blocks)
        if open_ids:
            raise self._unanswered(len(messages) - 1, open_ids)
        self._check_last_turn(body, messages)

    def _check_blocks(self, index: int, blocks: list[Json]) -> None:
        for position, block in enumerate(blocks):
            place = f"messages.{index}.content.{position}"
            if block["type"] == "text" and not block["text"].strip():
                raise self.refusal("messages: text content blocks must be non-empty")
            if block["type"] == "tool_use" and not re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]):
                raise self.refusal(f"{place}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")

    def _check_results(self, index: int, blocks: list[Json], open_ids: list[str]) -> list[str]:
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if any(block["type"] != "tool_result" for block in blocks[: len(results)]):
            raise self.refusal(f"messages.{index}: `tool_result` blocks must come first")
        if missing := [one for one in open_ids if one not in results]:
            raise self._unanswered(index - 1, missing)
        for result in results:
            if result not in open_ids:
                raise self.refusal(
                    f"messages.{index}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{result}. Each "
                    "`tool_result` block must have a corresponding `tool_use` block in the previous message."
                )
        return []

    def _unanswered(self, index: int, ids: list[str]) -> Refusal:
        return self.refusal(
            f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(ids)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
            f"next message."
        )

    def _check_thinking(self, index: int, blocks: list[Json]) -> None:
        for position, block in enumerate(blocks):
            if block["type"] == "thinking" and block["signature"] != signature(block["thinking"]):
                raise self.refusal(
                    f"messages.{index}.content.{position}: Invalid `signature` in `thinking` block"
                )
        first = next((block["id"] for block in blocks if block["type"] == "tool_use"), "")
        written = self._written.get(first)
        if written is None or not any(block["type"] == "thinking" for block in blocks):
            return
        if [_content(block) for block in blocks] != [_content(block) for block in written]:
            raise self.refusal(
                f"messages.{index}.content.0: `thinking` or `redacted_thinking` blocks in the latest "
                f"assistant message "
                "cannot be modified. These blocks must remain as they were in the original response."
            )

    def _check_last_turn(self, body: Json, messages: list[Json]) -> None:
        """With thinking, the replies with calls of the current turn begin with thinking."""
        if (body.get("thinking") or {}).get("type") != "enabled":
            return
        for index in range(len(messages) - 2, 0, -2):
            if not any(block["type"] == "tool_result" for block in _blocks(messages[index + 1])):
                return
            first = _blocks(messages[index])[0]["type"]
            if messages[index]["role"] == "assistant" and first not in ("thinking", "redacted_thinking"):
                raise self.refusal(
                    f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but "
                    f"found `{first}`. "
                    "When `thinking` is enabled, a final `assistant` message must start with a thinking "
                    "block."
                )

    def read(self, body: Json) -> Prompt:
        last = max(
            i
            for i, one in enumerate(body["messages"])
            if one["role"] == "user" and any(block["type"] == "text" for block in _blocks(one))
        )
        results = [block for one in body["messages"][last + 1 :] for block in _blocks(one)]
        system = body.get("system") or ""
        format = ((body.get("output_config") or {}).get("format")) or body.get("output_format") or {}
        return Prompt(
            system=system if isinstance(system, str) else "\n".join(block["text"] for block in system),
            user="\n".join(
                block["text"] for block in _blocks(body["messages"][last]) if block["type"] == "text"
            ),
            results=tuple(
                json.dumps(block["content"]) for block in results if block["type"] == "tool_result"
            ),
            images=tuple(_images(body["messages"])),
            tools={tool["name"]: tool["input_schema"] for tool in body.get("tools") or ()},
            schema=format.get("schema"),
            effort="high" if _thinks(body) else None,
            parallel=not (body.get("tool_choice") or {}).get("disable_parallel_tool_use"),
            text=json.dumps(body, ensure_ascii=False),
        )

    async def stream(self, body: Json, turn: Turn) -> AsyncIterator[bytes]:
        usage = self._usage(body)
        head = {"id": self.new_id("msg_"), "type": "message", "role": "assistant", "model": body["model"]}
        start = {
            **head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**usage, "output_tokens": 1},
        }
        yield _event("message_start", message=start)
        yield _event("ping")
        blocks = self._reply(body, turn)
        for index, block in enumerate(blocks):
            for sent in _block_events(index, block):
                yield sent
        if turn.breaks_with:
            yield event(
                {"type": "error", "error": {"type": "overloaded_error", "message": turn.breaks_with}}, "error"
            )
            return
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if calls:
            self._written[calls[0]] = blocks
        reason = {"length": "max_tokens", "filter": "refusal"}.get(
            turn.finish, "tool_use" if calls else "end_turn"
        )
        written = {"output_tokens": tokens(json.dumps(blocks))}
        yield _event(
            "message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={**usage, **written}
        )
        yield _event("message_stop")

    def _reply(self, body: Json, turn: Turn) -> list[Json]:
        blocks: list[Json] = []
        thinks = turn.reasoning and _thinks(body)
        if thinks:
            blocks.append(_thinking(turn.reasoning))
        if turn.text:
            blocks.append({"type": "text", "text": turn.text})
        for index, call in enumerate(turn.calls):
            if index and thinks and turn.thinks_between:
                blocks.append(_thinking(f"{turn.reasoning} Then {call.name}."))
            blocks.append(
                {"type": "tool_use", "id": self.new_id("toolu_"), "name": call.name, "input": call.arguments}
            )
        return blocks

    def _usage(self, body: Json) -> Json:
        """Count what the cache has: it is searched at most 20 blocks before each mark."""
        sent = list(_prompt_blocks(body))
        text = [json.dumps(_content(block)) for block in sent]
        prefixes = ["".join(text[: index + 1]) for index in range(len(text))]
        read, written, marked = 0, 0, set[str]()
        for index, block in enumerate(sent):
            if "cache_control" in block:
                written = len(prefixes[index])
                reachable = prefixes[max(0, index - LOOKBACK_BLOCKS) : index + 1]
                read = max([read, *(len(one) for one in reachable if one in self._cached)])
                marked.add(prefixes[index])
        self._cached |= marked
        total = len(prefixes[-1]) if prefixes else 0
        return {
            "input_tokens": (total - max(read, written)) // CHARS_PER_TOKEN + 1,
            "cache_creation_input_tokens": max(0, written - read) // CHARS_PER_TOKEN,
            "cache_read_input_tokens": read // CHARS_PER_TOKEN,
        }


def _thinks(body: Json) -> bool:
    return (body.get("thinking") or {}).get("type") in ("enabled", "adaptive")


def _thinking(text: str) -> Json:
    return {"type": "thinking", "thinking": text, "signature": signature(text)}


def _blocks(message: Json) -> list[Json]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _content(block: Json) -> Json:
    return {name: value for name, value in block.items() if name != "cache_control"}


def _prompt_blocks(body: Json) -> Iterator[Json]:
    yield from body.get("tools") or ()
    yield from body.get("system") or () if isinstance(body.get("system"), list) else ()
    for message in body["messages"]:
        yield from _blocks(message)


def _images(messages: list[Json]) -> Iterator[str]:
    for message in messages:
        for block in _blocks(message):
            if block["type"] == "image":
                yield block["source"].get("data") or block["source"]["url"]


def _block_events(index: int, block: Json) -> Iterator[bytes]:
    begun: Json = {**block, **{name: "" for name in ("text", "thinking", "signature") if name in block}}
    deltas: list[Json] = []
    match block["type"]:
        case "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case _:
            begun["input"] = {}
            written = ["", *pieces(json.dumps(block["input"]), 7)]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in written]
    yield _event("content_block_start", index=index, content_block=begun)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)
