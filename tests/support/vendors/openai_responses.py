"""OpenAI's Responses API without stored responses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

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
    signature,
    tokens,
)
from tests.support.vendors.schemas import openai_problem, openai_strict_problem
from tests.support.vendors.strict import problem


class OpenAIResponses(StandIn):
    """See https://platform.openai.com/docs/api-reference/responses/create."""

    name = "OpenAI (responses)"
    vendor = "openai"
    api = "responses"
    model = "gpt-5.4"

    def refusal(self, message: str, *, code: str | None = None, param: str | None = None) -> Refusal:
        error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
        return Refusal(400, {"error": error})

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post(f"{self.prefix}/responses", self.serve)

    def check(self, body: Json) -> None:
        if (found := problem(ResponseCreateParamsStreaming, body)) is not None:
            raise self.refusal(f"Unknown or invalid parameter: '{found[0]}': {found[1]}", param=found[0])
        if body.get("temperature") not in (None, 1):
            raise self.refusal(
                "Unsupported parameter: 'temperature' is not supported with this model.", param="temperature"
            )
        for index, tool in enumerate(body.get("tools") or ()):
            strict = tool.get("strict") is not False
            found_problem = (openai_strict_problem if strict else openai_problem)(tool["parameters"])
            if found_problem is not None:
                raise self.refusal(
                    f"Invalid schema for function '{tool['name']}': {found_problem}",
                    code="invalid_function_parameters",
                    param=f"tools[{index}].parameters",
                )
        self._check_input(body)
        count = prompt_tokens(body["input"])
        if count > self.context_tokens:
            raise self.refusal(
                "Your input exceeds the context window of this model. Please adjust your input and try "
                "again.",
                code="context_length_exceeded",
                param="input",
            )

    def _check_input(self, body: Json) -> None:
        items = body["input"] if isinstance(body["input"], list) else []
        calls = {item["call_id"] for item in items if item.get("type") == "function_call"}
        results = {item["call_id"] for item in items if item.get("type") == "function_call_output"}
        for index, item in enumerate(items):
            if item.get("type") == "reasoning":
                self._check_reasoning(item, items[index + 1 :])
            if item.get("type") == "function_call_output" and item["call_id"] not in calls:
                raise self.refusal(
                    f"No tool call found for function call output with call_id {item['call_id']}."
                )
        if calls - results:
            raise self.refusal(
                f"No tool output found for function call {min(calls - results)}.", param="input"
            )

    def _check_reasoning(self, item: Json, following: list[Json]) -> None:
        if not item.get("encrypted_content"):
            raise self.refusal(
                f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set to "
                f"false. Try "
                "again with `store` set to true, or remove this item from your input."
            )
        if item["encrypted_content"] != signature(item["id"]):
            raise self.refusal(
                f"The encrypted content for item {item['id']} could not be verified. Reason: Encrypted "
                f"content "
                "could not be decrypted or parsed.",
                code="invalid_encrypted_content",
            )
        if not following or following[0].get("type") not in ("function_call", "message", "reasoning"):
            raise self.refusal(
                f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
            )

    def read(self, body: Json) -> Prompt:
        items: list[Json] = (
            body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
        )
        last = max((i for i, one in enumerate(items) if one.get("role") == "user"), default=-1)
        format = (body.get("text") or {}).get("format") or {}
        system = [_text(one) for one in items if one.get("role") in ("system", "developer")]
        return Prompt(
            system="\n".join([body.get("instructions") or "", *system]),
            user=_text(items[last]) if last >= 0 else "",
            results=tuple(
                str(one["output"]) for one in items[last + 1 :] if one.get("type") == "function_call_output"
            ),
            images=tuple(
                part["image_url"].partition("base64,")[2] or part["image_url"]
                for one in items
                for part in _parts(one)
                if part["type"] == "input_image"
            ),
            tools={tool["name"]: tool["parameters"] for tool in body.get("tools") or ()},
            schema=format.get("schema"),
            effort=(body.get("reasoning") or {}).get("effort"),
            parallel=body.get("parallel_tool_calls") is not False,
            text=json.dumps(body, ensure_ascii=False),
        )

    async def stream(self, body: Json, turn: Turn) -> AsyncIterator[bytes]:
        response: Json = {
            "id": self.new_id("resp_"),
            "object": "response",
            "status": "in_progress",
            "output": [],
        }
        yield _event("response.created", response=response)
        items: list[Json] = []
        for one in self._items(body, turn):
            for sent in _item_events(len(items), one):
                yield sent
            items.append(one)
        if turn.breaks_with:
            error = {"code": "server_error", "message": turn.breaks_with}
            yield _event("response.failed", response={**response, "status": "failed", "error": error})
            return
        reason = {"length": "max_output_tokens", "filter": "content_filter"}.get(turn.finish)
        status = "incomplete" if reason else "completed"
        details = {"reason": reason} if reason else None
        ended = {"output": items, "incomplete_details": details, "usage": self._usage(body, items)}
        yield _event(f"response.{status}", response={**response, "status": status, **ended})

    def _items(self, body: Json, turn: Turn) -> list[Json]:
        items: list[Json] = []
        effort = (body.get("reasoning") or {}).get("effort")
        wanted = [turn.reasoning] if turn.reasoning and effort != "none" else []
        for index, call in enumerate(turn.calls or (None,)):
            if wanted and (index == 0 or turn.thinks_between):
                items.append(self._reasoning(body, wanted[0]))
            if call is None:
                break
            items.append(self._call(call))
        if turn.text:
            part = {"type": "output_text", "text": turn.text, "annotations": []}
            message = {
                "id": self.new_id("msg_"),
                "type": "message",
                "role": "assistant",
                "status": "completed",
            }
            items.insert(len(items) - len(turn.calls), {**message, "content": [part]})
        return items

    def _reasoning(self, body: Json, text: str) -> Json:
        item_id = self.new_id("rs_")
        item: Json = {"id": item_id, "type": "reasoning", "summary": []}
        if (body.get("reasoning") or {}).get("summary"):
            item["summary"] = [{"type": "summary_text", "text": text}]
        if "reasoning.encrypted_content" in (body.get("include") or ()):
            item["encrypted_content"] = signature(item_id)
        return item

    def _call(self, call: Call) -> Json:
        ids = {"id": self.new_id("fc_"), "call_id": self.new_id("call_")}
        arguments = json.dumps(call.arguments)
        return {
            **ids,
            "type": "function_call",
            "name": call.name,
            "arguments": arguments,
            "status": "completed",
        }

    def _usage(self, body: Json, items: list[Json]) -> Json:
        text = json.dumps([body.get("tools"), body.get("instructions"), body["input"]])
        read, written = tokens(text), tokens("".join(map(_written, items)))
        return {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": self.cached_tokens(text)},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        }


def _item_events(index: int, item: Json) -> list[bytes]:
    place = {"output_index": index, "item_id": item["id"]}
    deltas: list[tuple[str, Json]]
    match item["type"]:
        case "reasoning":
            name = "response.reasoning_summary_text.delta"
            texts = [piece for part in item["summary"] for piece in pieces(part["text"])]
            deltas = [(name, {"summary_index": 0, "delta": piece}) for piece in texts]
        case "message":
            name, text = "response.output_text.delta", item["content"][0]["text"]
            deltas = [(name, {"content_index": 0, "delta": piece}) for piece in pieces(text)]
        case _:
            name = "response.function_call_arguments.delta"
            deltas = [(name, {"delta": piece}) for piece in pieces(item["arguments"], 7)]
    begun: Json = {**item, "status": "in_progress"}
    for name in ("arguments", "encrypted_content"):
        if name in begun:
            begun[name] = ""
    if item["type"] == "message":
        begun["content"] = []
    return [
        _event("response.output_item.added", output_index=index, item=begun),
        *(_event(name, **place, **fields) for name, fields in deltas),
        _event("response.output_item.done", output_index=index, item=item),
    ]


def _written(item: Json) -> str:
    return item["content"][0]["text"] if item["type"] == "message" else item.get("arguments", "")


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, "sequence_number": 0, **fields}, name)


def _parts(item: Json) -> list[Json]:
    content = item.get("content")
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    return [part for part in content or () if isinstance(part, dict)]


def _text(item: Json) -> str:
    return "\n".join(part["text"] for part in _parts(item) if "text" in part)
