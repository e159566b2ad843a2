from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

from banksman.model_server.chat import Call, ChatRequest, Json, RequestRefused, dumps, estimated_tokens
from banksman.model_server.replies import EventStream, Reply, TokenCounts, argument_fragments, typed_event

_DONE = b"data: [DONE]\n\n"


def completion(reply: Reply, chat: ChatRequest) -> bytes:
    message: Json = {"role": "assistant", "content": reply.text or (None if reply.calls else "")}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    choice: Json = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish_reason}
    body = _head("chat.completion", chat) | {"choices": [choice]}
    if reply.usage is not None:
        body["usage"] = _usage(reply.usage, reply)
    return dumps(body).encode()


def chunks(reply: Reply, chat: ChatRequest) -> EventStream:
    head = dumps(_head("chat.completion.chunk", chat))[:-1]
    tail = ',"usage":null}\n\n' if chat.include_usage else "}\n\n"

    def event(delta: str, finish_reason: str = "null") -> bytes:
        choice = f'{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish_reason}}}'
        return f'data: {head},"choices":[{choice}]{tail}'.encode()

    events = [event('{"role":"assistant","content":""}')]
    events += [event(f'{{"reasoning_content":{dumps(chunk)}}}') for chunk in reply.reasoning_chunks]
    events += [event(f'{{"content":{dumps(chunk)}}}') for chunk in reply.text_chunks]
    for index in range(len(reply.calls)):
        events += [event(dumps({"tool_calls": [delta]})) for delta in _call_deltas(reply, index)]
    closing = [event("{}", dumps(reply.finish_reason))]
    if chat.include_usage and reply.usage is not None:
        usage = dumps(_usage(reply.usage, reply))
        closing.append(f'data: {head},"choices":[],"usage":{usage}}}\n\n'.encode())
    return EventStream(events, [*closing, _DONE])


def refusal(refused: RequestRefused, _request_id: str) -> bytes:
    error = {"message": refused.message, "type": "invalid_request_error"}
    return dumps({"error": error | {"param": refused.param, "code": refused.code}}).encode()


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


def _call_deltas(reply: Reply, index: int) -> list[Json]:
    call = reply.calls[index]
    first: Json = {
        "index": index,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": ""},
    }
    fragments = argument_fragments(call.arguments)
    return [first, *({"index": index, "function": {"arguments": fragment}} for fragment in fragments)]


def _usage(usage: TokenCounts, reply: Reply) -> Json:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": estimated_tokens(len(reply.reasoning))},
    }


_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def response(reply: Reply, chat: ChatRequest) -> bytes:
    items = [item for item, _ in _output(reply, chat)]
    return dumps(_ended(_response(chat), reply, items)).encode()


def response_events(reply: Reply, chat: ChatRequest) -> EventStream:
    begun = _response(chat)
    found: list[tuple[str, Json]] = [("response.created", {"response": begun})]
    found.append(("response.in_progress", {"response": begun}))
    items: list[Json] = []
    for index, (item, content) in enumerate(_output(reply, chat)):
        where: Json = {"output_index": index, "item_id": item["id"]}
        found.append(("response.output_item.added", {"output_index": index, "item": _empty(item)}))
        found += [(kind, where | fields) for kind, fields in content]
        found.append(("response.output_item.done", {"output_index": index, "item": item}))
        items.append(item)
    ended = _ended(begun, reply, items)
    found.append((f"response.{ended['status']}", {"response": ended}))
    *content, closing = [
        typed_event(kind, fields | {"sequence_number": number}) for number, (kind, fields) in enumerate(found)
    ]
    return EventStream(content, [closing])


def _output(reply: Reply, chat: ChatRequest) -> Iterable[tuple[Json, list[tuple[str, Json]]]]:
    if reply.reasoning:
        yield _reasoning(reply)
    if reply.text or not reply.calls:
        yield _message(reply)
    for call in reply.calls:
        yield _function_call(call, chat.namespaces.get(call.name))


def _message(reply: Reply) -> tuple[Json, list[tuple[str, Json]]]:
    part: Json = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
    at: Json = {"content_index": 0}
    deltas: list[Json] = [at | {"delta": chunk, "logprobs": []} for chunk in reply.text_chunks]
    content: list[tuple[str, Json]] = [("response.content_part.added", at | {"part": part | {"text": ""}})]
    content += [("response.output_text.delta", delta) for delta in deltas]
    content.append(("response.output_text.done", at | {"text": reply.text, "logprobs": []}))
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


def _reasoning(reply: Reply) -> tuple[Json, list[tuple[str, Json]]]:
    part: Json = {"type": "summary_text", "text": reply.reasoning}
    at: Json = {"summary_index": 0}
    kind = "response.reasoning_summary"
    content: list[tuple[str, Json]] = [(f"{kind}_part.added", at | {"part": part | {"text": ""}})]
    content += [(f"{kind}_text.delta", at | {"delta": chunk}) for chunk in reply.reasoning_chunks]
    content.append((f"{kind}_text.done", at | {"text": reply.reasoning}))
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


def _ended(begun: Json, reply: Reply, items: list[Json]) -> Json:
    reason = _INCOMPLETE.get(reply.finish_reason)
    return begun | {
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "output": items,
        "usage": None if reply.usage is None else _response_usage(reply.usage, reply),
    }


def _response_usage(usage: TokenCounts, reply: Reply) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": estimated_tokens(len(reply.reasoning))},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
