from __future__ import annotations

import time
import uuid

from banksman.model_server.chat import Json, RequestRefused, ValidatedRequest, dumps, estimated_tokens
from banksman.model_server.models import EventStream, ResolvedReply, argument_fragments
from banksman.model_server.script import HttpError, ScriptedUsage, StreamError

_DONE = b"data: [DONE]\n\n"

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ERROR_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def completion(resolved: ResolvedReply, chat: ValidatedRequest) -> bytes:
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


def chunks(resolved: ResolvedReply, chat: ValidatedRequest) -> EventStream:
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
    status, kind = refused.status, "invalid_request_error"
    return _error_body(refused.message, status, error_type=kind, param=refused.param, code=refused.code)


def http_error(fault: HttpError, _request_id: str) -> bytes:
    return _error_body(fault.message, fault.status, error_type=fault.error_type, code=fault.code)


def stream_error(fault: StreamError, _request_id: str) -> bytes:
    """Return the event that reports a fault within a stream; no `[DONE]` follows it."""
    return b"data: " + _error_body(fault.message, 500, error_type=fault.error_type) + b"\n\n"


def model_object(name: str) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": "banksman"}


def models_page(names: list[str]) -> Json:
    return {"object": "list", "data": [model_object(name) for name in names]}


def _head(kind: str, chat: ValidatedRequest) -> Json:
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
    message: str,
    status: int,
    *,
    error_type: str | None = None,
    param: str | None = None,
    code: str | None = None,
) -> bytes:
    default_type = "server_error" if status >= 500 else "invalid_request_error"
    error = {
        "message": message,
        "type": error_type or _ERROR_TYPES.get(status, default_type),
        "param": param,
        "code": code or _ERROR_CODES.get(status),
    }
    return dumps({"error": error}).encode()
