from __future__ import annotations

import base64
import hashlib
import uuid

from banksman.model_server.chat import Call, ChatRequest, Json, RequestRefused, dumps, loads_object
from banksman.model_server.replies import EventStream, Reply, TokenCounts, argument_fragments, typed_event

_STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
_EPOCH = "1970-01-01T00:00:00Z"


def message(reply: Reply, chat: ChatRequest) -> bytes:
    content: list[Json] = []
    if thinking := reply.reasoning:
        content.append({"type": "thinking", "thinking": thinking, "signature": signature_of(thinking)})
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    content += [_tool_use(call, _input(call)) for call in reply.calls]
    body = _head(chat) | {"content": content, "stop_reason": _stop_reason(reply)}
    if reply.usage is not None:
        body["usage"] = _usage(reply.usage, reply.usage.output_tokens)
    return dumps(body).encode()


def events(reply: Reply, chat: ChatRequest) -> EventStream:
    start = _head(chat)
    if reply.usage is not None:
        start["usage"] = _usage(reply.usage, min(1, reply.usage.output_tokens))
    stream = [typed_event("message_start", {"message": start}), typed_event("ping", {})]
    for index, (block, deltas) in enumerate(_blocks(reply)):
        stream.append(typed_event("content_block_start", {"index": index, "content_block": block}))
        stream += [typed_event("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
        stream.append(typed_event("content_block_stop", {"index": index}))
    end: Json = {"delta": {"stop_reason": _stop_reason(reply), "stop_sequence": None}}
    if reply.usage is not None:
        end["usage"] = {"output_tokens": reply.usage.output_tokens}
    return EventStream(stream, [typed_event("message_delta", end), typed_event("message_stop", {})])


def refusal(refused: RequestRefused, request_id: str) -> bytes:
    error: Json = {"type": refused.error_type, "message": refused.message}
    error |= {"details": refused.details} if refused.details else {}
    return dumps({"type": "error", "error": error, "request_id": request_id}).encode()


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


def _stop_reason(reply: Reply) -> str:
    return _STOP_REASONS.get(reply.finish_reason, reply.finish_reason)


def _tool_use(call: Call, arguments: object) -> Json:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _input(call: Call) -> object:
    arguments = loads_object(call.arguments)
    return call.arguments if arguments is None else arguments


def _blocks(reply: Reply) -> list[tuple[Json, list[Json]]]:
    blocks: list[tuple[Json, list[Json]]] = []
    if reply.reasoning_chunks:
        thinking: list[Json] = [
            {"type": "thinking_delta", "thinking": chunk} for chunk in reply.reasoning_chunks
        ]
        signature: Json = {"type": "signature_delta", "signature": signature_of(reply.reasoning)}
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, [*thinking, signature]))
    if reply.text_chunks:
        text: list[Json] = [{"type": "text_delta", "text": chunk} for chunk in reply.text_chunks]
        blocks.append(({"type": "text", "text": ""}, text))
    for call in reply.calls:
        fragments = ["", *argument_fragments(call.arguments)]
        deltas: list[Json] = [{"type": "input_json_delta", "partial_json": piece} for piece in fragments]
        blocks.append((_tool_use(call, {}), deltas))
    return blocks


def _usage(usage: TokenCounts, output_tokens: int) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "service_tier": "standard",
    }


def signature_of(thinking: str) -> str:
    """Return the signature of a thinking block. The vendor's own algorithm is secret."""
    return base64.b64encode(hashlib.sha256(b"scripted:" + thinking.encode()).digest()).decode()
