from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

from banksman.model_server.chat import Call, ChatRequest, Json, RequestRefused, dumps, estimated_tokens
from banksman.model_server.models import EventStream, ResolvedReply, argument_fragments, typed_event
from banksman.model_server.script import HttpError, ScriptedUsage, StreamError

_DONE = b"data: [DONE]\n\n"

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ERROR_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def completion(resolved: ResolvedReply, chat: ChatRequest) -> bytes:
    message: Json = {"role": "assistant", "content": resolved.text or (None if resolved.calls else "")}
    if resolved.reasoning:
        message["reasoning_content"] = resolved.reasoning
    if resolved.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in resolved.calls
        ]
    choice: Json = {"index": 0, "message": message, "logprobs": None, "finish_reason": resolved.finish_reason}
    body = _head("chat.completion", chat) | {"choices": [choice]}
    if resolved.usage is not None:
        body["usage"] = _usage(resolved.usage, resolved)
    return dumps(body).encode()


def chunks(resolved: ResolvedReply, chat: ChatRequest) -> EventStream:
    head = dumps(_head("chat.completion.chunk", chat))[:-1]
    tail = ',"usage":null}\n\n' if chat.include_usage else "}\n\n"

    def event(delta: str, finish_reason: str = "null") -> bytes:
        choice = f'{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish_reason}}}'
        return f'data: {head},"choices":[{choice}]{tail}'.encode()

    events = [event('{"role":"assistant","content":""}')]
    events += [event(f'{{"reasoning_content":{dumps(chunk)}}}') for chunk in resolved.reasoning_chunks]
    events += [event(f'{{"content":{dumps(chunk)}}}') for chunk in resolved.text_chunks]
    for index in range(len(resolved.calls)):
        events += [event(dumps({"tool_calls": [delta]})) for delta in _call_deltas(resolved, index)]
    closing = [event("{}", dumps(resolved.finish_reason))]
    if chat.include_usage and resolved.usage is not None:
        usage = dumps(_usage(resolved.usage, resolved))
        closing.append(f'data: {head},"choices":[],"usage":{usage}}}\n\n'.encode())
    return EventStream(events, [*closing, _DONE])


def refusal(refused: RequestRefused, _request_id: str) -> bytes:
    kind = "invalid_request_error"
    return _error_body(refused.message, refused.status, kind, param=refused.param, code=refused.code)


def http_error(fault: HttpError, _request_id: str) -> bytes:
    return _error_body(fault.message, fault.status, fault.error_type, code=fault.code)


def stream_error(fault: StreamError, _request_id: str) -> bytes:
    """Return the event that reports a fault within a stream; no `[DONE]` follows it."""
    return b"data: " + _error_body(fault.message, 500, fault.error_type) + b"\n\n"


def model_object(name: str) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": "banksman"}


def models_page(names: list[str]) -> Json:
    return {"object": "list", "data": [model_object(name) for name in names]}


def _head(kind: str, chat: ChatRequest) -> Json:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex[:24]}",
        "object": kind,
        "created": int(time.time()),
        "model": chat.model,
        "system_fingerprint": None,
    }


def _call_deltas(resolved: ResolvedReply, index: int) -> list[Json]:
    call = resolved.calls[index]
    first: Json = {
        "index": index,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": ""},
    }
    fragments = argument_fragments(call.arguments)
    return [first, *({"index": index, "function": {"arguments": fragment}} for fragment in fragments)]


def _usage(usage: ScriptedUsage, resolved: ResolvedReply) -> Json:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": estimated_tokens(len(resolved.reasoning))},
    }


def _error_body(
    message: str, status: int, error_type: str | None, *, param: str | None = None, code: str | None = None
) -> bytes:
    default_type = "server_error" if status >= 500 else "invalid_request_error"
    error = {
        "message": message,
        "type": error_type or _ERROR_TYPES.get(status, default_type),
        "param": param,
        "code": code or _ERROR_CODES.get(status),
    }
    return dumps({"error": error}).encode()


_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def response(resolved: ResolvedReply, chat: ChatRequest) -> bytes:
    items = [item for item, _ in _output(resolved, chat)]
    return dumps(_ended(_response(chat), resolved, items)).encode()


def response_events(resolved: ResolvedReply, chat: ChatRequest) -> EventStream:
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
    *content, closing = [
        typed_event(kind, fields | {"sequence_number": number}) for number, (kind, fields) in enumerate(found)
    ]
    return EventStream(content, [closing])


def response_error(fault: StreamError, _request_id: str) -> bytes:
    code = fault.error_type or "server_error"
    return typed_event("error", {"code": code, "message": fault.message, "param": None})


def _output(resolved: ResolvedReply, chat: ChatRequest) -> Iterable[tuple[Json, list[tuple[str, Json]]]]:
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


def _response(chat: ChatRequest) -> Json:
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
        "usage": None if resolved.usage is None else _response_usage(resolved.usage, resolved),
    }


def _response_usage(usage: ScriptedUsage, resolved: ResolvedReply) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": estimated_tokens(len(resolved.reasoning))},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
