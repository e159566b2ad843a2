"""Read the requests of the three wire formats.

Only what a reply depends on is read. A value of another type than the vendor's counts as absent, so that the
server answers every request that has a model and a history.
"""

from __future__ import annotations

from collections.abc import Iterator

from banksman.model_server import chat


def read_chat_completion(body: chat.Json) -> chat.ChatRequest:
    """Read the body of `POST /v1/chat/completions`; raise `RequestRefused` without model or history."""
    items: list[chat.Item] = []
    system: list[str] = []
    for message in _history(body, "messages"):
        text = _text(message.get("content"))
        match message.get("role"):
            case "system" | "developer":
                system.append(text)
            case "assistant":
                items.append(
                    chat.AssistantTurn(text, tuple(map(_chat_call, chat.objects(message.get("tool_calls")))))
                )
            case "tool":
                items.append(chat.ToolOutput(str(message.get("tool_call_id")), text))
            case _:
                items.append(chat.UserText(text))
    options = chat.as_object(body.get("stream_options")) or {}
    functions = [chat.as_object(tool.get("function")) or {} for tool in chat.objects(body.get("tools"))]
    return chat.ChatRequest(
        dialect="openai",
        model=_model(body),
        items=tuple(items),
        system="\n\n".join(system),
        tools=frozenset(_names(functions)),
        parallel_calls=body.get("parallel_tool_calls") is not False,
        stream=body.get("stream") is True,
        include_usage=options.get("include_usage") is True,
        tools_chars=_tools_chars(body),
    )


def read_message(body: chat.Json) -> chat.ChatRequest:
    """Read the body of `POST /v1/messages`; raise `RequestRefused` without model or history."""
    if body.get("thread") is not None:
        # The vendor's SDKs send their tool loops as threads, in which later requests contain only new
        # messages. After a refusal with these details, they send the whole history instead.
        raise chat.RequestRefused(
            "thread: this server stores no messages. Send the whole history.",
            "thread",
            details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
        )
    items: list[chat.Item] = []
    for message in _history(body, "messages"):
        blocks = _parts(message.get("content"))
        if message.get("role") == "assistant":
            calls = [block for block in blocks if block.get("type") == "tool_use"]
            items.append(chat.AssistantTurn(_text(blocks, joined_by=""), tuple(map(_message_call, calls))))
        else:
            items += map(_user_item, blocks)
    choice = chat.as_object(body.get("tool_choice")) or {}
    return chat.ChatRequest(
        dialect="anthropic",
        model=_model(body),
        items=tuple(items),
        system=_text(body.get("system"), joined_by="\n\n"),
        tools=frozenset(_names(chat.objects(body.get("tools")))),
        parallel_calls=choice.get("disable_parallel_tool_use") is not True,
        stream=body.get("stream") is True,
        tools_chars=_tools_chars(body),
    )


def read_response(body: chat.Json) -> chat.ChatRequest:
    """Read the body of `POST /v1/responses`, without items and tools that only the vendor executes."""
    if body.get("previous_response_id") is not None:
        raise chat.RequestRefused(
            "This server stores no responses: send the whole history as 'input'.",
            "previous_response_id",
            code="previous_response_not_found",
        )
    items: list[chat.Item] = []
    system = [body["instructions"]] if chat.is_text(body.get("instructions")) else []
    for item in _history(body, "input"):
        match item.get("type", "message"), item.get("role"):
            case "message", "system" | "developer":
                system.append(_text(item.get("content")))
            case "message", "assistant":
                _add_to_turn(items, chat.AssistantTurn(_text(item.get("content"))))
            case "message", _:
                items.append(chat.UserText(_text(item.get("content"))))
            case "function_call", _:
                name = _qualified(item.get("namespace"), str(item.get("name")))
                call = chat.Call(str(item.get("call_id")), name, str(item.get("arguments")))
                _add_to_turn(items, chat.AssistantTurn("", (call,)))
            case "function_call_output", _:
                items.append(chat.ToolOutput(str(item.get("call_id")), _text(item.get("output"))))
            case _:
                pass
    namespaces = dict(_namespaces(body))
    functions = [tool for tool in chat.objects(body.get("tools")) if tool.get("type") == "function"]
    return chat.ChatRequest(
        dialect="responses",
        model=_model(body),
        items=tuple(items),
        system="\n\n".join(system),
        tools=frozenset([*_names(functions), *namespaces]),
        namespaces=namespaces,
        parallel_calls=body.get("parallel_tool_calls") is not False,
        stream=body.get("stream") is True,
        tools_chars=_tools_chars(body),
    )


def _model(body: chat.Json) -> str:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise chat.RequestRefused(f"model: expected the name of a model, got {model!r}", "model")
    return model


def _history(body: chat.Json, field: str) -> list[chat.Json]:
    stated = body.get(field)
    history = [chat.Json(role="user", content=stated)] if chat.is_text(stated) else chat.objects(stated)
    if not history:
        raise chat.RequestRefused(f"{field}: expected a list with at least one object", field)
    return history


def _tools_chars(body: chat.Json) -> int:
    return len(chat.dumps(body["tools"])) if body.get("tools") else 0


def _names(tools: list[chat.Json]) -> Iterator[str]:
    return (tool["name"] for tool in tools if chat.is_text(tool.get("name")))


def _parts(content: object) -> list[chat.Json]:
    return [{"type": "text", "text": content}] if chat.is_text(content) else chat.objects(content)


def _text(content: object, *, joined_by: str = "\n") -> str:
    """Return the text of a string or of a list of parts, in which images and the like count as empty."""
    if chat.is_text(content):
        return content
    texts = (part.get("text", part.get("refusal")) for part in chat.objects(content))
    return joined_by.join(text if chat.is_text(text) else "" for text in texts)


def _chat_call(call: chat.Json) -> chat.Call:
    function = chat.as_object(call.get("function")) or {}
    return chat.Call(str(call.get("id")), str(function.get("name")), str(function.get("arguments")))


def _message_call(block: chat.Json) -> chat.Call:
    return chat.Call(str(block.get("id")), str(block.get("name")), chat.dumps(block.get("input")))


def _user_item(block: chat.Json) -> chat.UserText | chat.ToolOutput:
    if block.get("type") == "tool_result":
        is_error = block.get("is_error") is True
        return chat.ToolOutput(str(block.get("tool_use_id")), _text(block.get("content")), is_error)
    return chat.UserText(_text([block]))


def _namespaces(body: chat.Json) -> Iterator[tuple[str, str]]:
    for group in chat.objects(body.get("tools")):
        namespace = group.get("name")
        if group.get("type") == "namespace" and chat.is_text(namespace):
            for name in _names(chat.objects(group.get("tools"))):
                yield _qualified(namespace, name), namespace


def _qualified(namespace: object, name: str) -> str:
    return f"{namespace}__{name}" if namespace else name


def _add_to_turn(items: list[chat.Item], turn: chat.AssistantTurn) -> None:
    """Append a part of a reply. The text and the calls of one reply are separate items of the request."""
    match items[-1:]:
        case [chat.AssistantTurn() as last]:
            items[-1] = chat.AssistantTurn(last.text + turn.text, last.calls + turn.calls)
        case _:
            items.append(turn)
