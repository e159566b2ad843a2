from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from itertools import count
from typing import Any

from banksman.model_server.chat import Call, Json, ValidatedRequest, dumps, estimated_tokens
from banksman.model_server.models import EventStream, ResolvedReply, argument_fragments
from banksman.model_server.script import ScriptedUsage, StreamError

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def response(resolved: ResolvedReply, chat: ValidatedRequest) -> bytes:
    items = [item for item, _ in _output(resolved, chat)]
    return dumps(_ended(_response(chat), resolved, items)).encode()


def events(resolved: ResolvedReply, chat: ValidatedRequest) -> EventStream:
    begun = _response(chat)
    found: list[tuple[str, Json]] = [("response.created", {"response": begun})]
    found.append(("response.in_progress", {"response": begun}))
    items: list[Json] = []
    for index, (item, content) in enumerate(_output(resolved, chat)):
        where: Json = {"output_index": index, "item_id": item["id"]}
        found.append(("response.output_item.added", {"output_index": index, "item": _empty(item)}))
        found += [(kind, where | fields) for kind, fields in content]
        found.append(("response.output_item.done", {"output_index": index, "item": item}))
        items.append(item)
    ended = _ended(begun, resolved, items)
    found.append((f"response.{ended['status']}", {"response": ended}))
    numbers = count()
    *content, closing = [_event(kind, fields | {"sequence_number": next(numbers)}) for kind, fields in found]
    return EventStream(content, [closing])


def stream_error(fault: StreamError, _request_id: str) -> bytes:
    code = fault.error_type or "server_error"
    return _event("error", {"code": code, "message": fault.message, "param": None})


def _event(kind: str, fields: Json) -> bytes:
    return f"event: {kind}\ndata: {dumps({'type': kind} | fields)}\n\n".encode()


def _output(resolved: ResolvedReply, chat: ValidatedRequest) -> Iterable[tuple[Json, list[tuple[str, Json]]]]:
    if resolved.reasoning:
        yield _reasoning(resolved)
    if resolved.text or not resolved.calls:
        yield _message(resolved)
    for call in resolved.calls:
        yield _function_call(call, chat.namespaces.get(call.name))


def _message(resolved: ResolvedReply) -> tuple[Json, list[tuple[str, Json]]]:
    part: Json = {"type": "output_text", "text": resolved.text, "annotations": [], "logprobs": []}
    at: Json = {"content_index": 0}
    deltas: list[Json] = [at | {"delta": chunk, "logprobs": []} for chunk in resolved.text_chunks]
    content: list[tuple[str, Json]] = [("response.content_part.added", at | {"part": part | {"text": ""}})]
    content += [("response.output_text.delta", delta) for delta in deltas]
    content.append(("response.output_text.done", at | {"text": resolved.text, "logprobs": []}))
    content.append(("response.content_part.done", at | {"part": part}))
    item: Json = {"id": _id("msg"), "type": "message", "status": "completed", "role": "assistant"}
    return item | {"content": [part]}, content


def _function_call(call: Call, namespace: str | None) -> tuple[Json, list[tuple[str, Json]]]:
    name = call.name.removeprefix(f"{namespace}__")
    kind = "response.function_call_arguments"
    content: list[tuple[str, Json]] = [
        (f"{kind}.delta", {"delta": fragment}) for fragment in argument_fragments(call.arguments)
    ]
    content.append((f"{kind}.done", {"name": name, "arguments": call.arguments}))
    item: Json = {"id": _id("fc"), "type": "function_call", "status": "completed"}
    item |= {"call_id": call.id, "name": name, "arguments": call.arguments}
    return item | ({"namespace": namespace} if namespace else {}), content


def _reasoning(resolved: ResolvedReply) -> tuple[Json, list[tuple[str, Json]]]:
    part: Json = {"type": "summary_text", "text": resolved.reasoning}
    at: Json = {"summary_index": 0}
    kind = "response.reasoning_summary"
    content: list[tuple[str, Json]] = [(f"{kind}_part.added", at | {"part": part | {"text": ""}})]
    content += [(f"{kind}_text.delta", at | {"delta": chunk}) for chunk in resolved.reasoning_chunks]
    content.append((f"{kind}_text.done", at | {"text": resolved.reasoning}))
    content.append((f"{kind}_part.done", at | {"part": part}))
    return {"id": _id("rs"), "type": "reasoning", "summary": [part]}, content


def _empty(item: Json) -> Json:
    beginnings: Json = {"status": "in_progress", "content": [], "arguments": "", "summary": []}
    return item | {name: value for name, value in beginnings.items() if name in item}


def _response(chat: ValidatedRequest) -> Json:
    return {
        "id": _id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": chat.system or None,
        "metadata": {},
        "model": chat.model,
        "output": [],
        "parallel_tool_calls": chat.parallel_calls,
        "previous_response_id": None,
        "store": False,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
    }


def _ended(begun: Json, resolved: ResolvedReply, items: list[Json]) -> Json:
    reason = _INCOMPLETE.get(resolved.finish_reason)
    return begun | {
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "output": items,
        "usage": None if resolved.usage is None else _usage(resolved.usage, resolved),
    }


def _usage(usage: ScriptedUsage, resolved: ResolvedReply) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": estimated_tokens(len(resolved.reasoning))},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
