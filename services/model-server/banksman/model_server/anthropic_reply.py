from __future__ import annotations

import base64
import hashlib
import uuid

from banksman.model_server.chat import Call, ChatRequest, Json, RequestRefused, dumps, loads_object
from banksman.model_server.models import EventStream, ResolvedReply, argument_fragments, typed_event
from banksman.model_server.script import HttpError, ScriptedUsage, StreamError

_STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_EPOCH = "1970-01-01T00:00:00Z"


def message(resolved: ResolvedReply, chat: ChatRequest) -> bytes:
    content: list[Json] = []
    if thinking := resolved.reasoning:
        content.append({"type": "thinking", "thinking": thinking, "signature": signature_of(thinking)})
    if resolved.text:
        content.append({"type": "text", "text": resolved.text})
    content += [_tool_use(call, _input(call)) for call in resolved.calls]
    body = _head(chat) | {"content": content, "stop_reason": _stop_reason(resolved)}
    if resolved.usage is not None:
        body["usage"] = _usage(resolved.usage, resolved.usage.output_tokens)
    return dumps(body).encode()


def events(resolved: ResolvedReply, chat: ChatRequest) -> EventStream:
    start = _head(chat)
    if resolved.usage is not None:
        start["usage"] = _usage(resolved.usage, min(1, resolved.usage.output_tokens))
    stream = [typed_event("message_start", {"message": start}), typed_event("ping", {})]
    for index, (block, deltas) in enumerate(_blocks(resolved)):
        stream.append(typed_event("content_block_start", {"index": index, "content_block": block}))
        stream += [typed_event("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
        stream.append(typed_event("content_block_stop", {"index": index}))
    end: Json = {"delta": {"stop_reason": _stop_reason(resolved), "stop_sequence": None}}
    if resolved.usage is not None:
        end["usage"] = {"output_tokens": resolved.usage.output_tokens}
    return EventStream(stream, [typed_event("message_delta", end), typed_event("message_stop", {})])


def refusal(refused: RequestRefused, request_id: str) -> bytes:
    return _error_body(
        refused.message, refused.status, request_id, error_type=refused.error_type, details=refused.details
    )


def http_error(fault: HttpError, request_id: str) -> bytes:
    return _error_body(fault.message, fault.status, request_id, error_type=fault.error_type)


def stream_error(fault: StreamError, request_id: str) -> bytes:
    body = _error_body(fault.message, 500, request_id, error_type=fault.error_type)
    return b"event: error\ndata: " + body + b"\n\n"


def model_object(name: str) -> Json:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": _EPOCH,
        "lifecycle": "active",
    }


def models_page(names: list[str]) -> Json:
    return {
        "data": [model_object(name) for name in names],
        "has_more": False,
        "first_id": names[0] if names else None,
        "last_id": names[-1] if names else None,
    }


def _head(chat: ChatRequest) -> Json:
    return {
        "id": f"msg_{uuid.uuid4().hex[:24]}",
        "type": "message",
        "role": "assistant",
        "model": chat.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _stop_reason(resolved: ResolvedReply) -> str:
    return _STOP_REASONS.get(resolved.finish_reason, resolved.finish_reason)


def _tool_use(call: Call, arguments: object) -> Json:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _input(call: Call) -> object:
    arguments = loads_object(call.arguments)
    return call.arguments if arguments is None else arguments


def _blocks(resolved: ResolvedReply) -> list[tuple[Json, list[Json]]]:
    blocks: list[tuple[Json, list[Json]]] = []
    if resolved.reasoning_chunks:
        thinking: list[Json] = [
            {"type": "thinking_delta", "thinking": chunk} for chunk in resolved.reasoning_chunks
        ]
        signature: Json = {"type": "signature_delta", "signature": signature_of(resolved.reasoning)}
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, [*thinking, signature]))
    if resolved.text_chunks:
        text: list[Json] = [{"type": "text_delta", "text": chunk} for chunk in resolved.text_chunks]
        blocks.append(({"type": "text", "text": ""}, text))
    for call in resolved.calls:
        fragments = ["", *argument_fragments(call.arguments)]
        deltas: list[Json] = [{"type": "input_json_delta", "partial_json": piece} for piece in fragments]
        blocks.append((_tool_use(call, {}), deltas))
    return blocks


def _usage(usage: ScriptedUsage, output_tokens: int) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "service_tier": "standard",
    }


def _error_body(
    message: str, status: int, request_id: str, *, error_type: str | None = None, details: Json | None = None
) -> bytes:
    kind = error_type or _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    error: Json = {"type": kind, "message": message} | ({"details": details} if details else {})
    return dumps({"type": "error", "error": error, "request_id": request_id}).encode()


def signature_of(thinking: str) -> str:
    """Return the signature of a thinking block. The vendor's own algorithm is secret."""
    return base64.b64encode(hashlib.sha256(b"scripted:" + thinking.encode()).digest()).decode()
