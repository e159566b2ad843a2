from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from banksman.model_server.anthropic_reply import signed_thinking
from banksman.model_server.chat import (
    TOOL_NAME,
    AssistantTurn,
    Call,
    Item,
    Json,
    RequestRefused,
    ToolOutput,
    UserText,
    ValidatedRequest,
    as_list,
    as_object,
    dumps,
    schema_fault,
)

_USER_BLOCKS = frozenset({"text", "image", "document", "search_result", "tool_result"})
_ASSISTANT_BLOCKS = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})


def parse_message(body: Json, *, counting: bool = False) -> ValidatedRequest:
    """Parse a body as strictly as the vendor does; with `counting`, one of `/v1/messages/count_tokens`."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise RequestRefused("model: Field required", "model")
    if not counting:
        _check_options(body)
    tools = _tools(body)
    turns = _turns(body)
    _check_pairs(turns)
    system = _system(body)
    items = tuple(item for turn in turns for item in turn.items)
    choice = as_object(body.get("tool_choice")) or {}
    return ValidatedRequest(
        dialect="anthropic",
        model=model,
        items=items,
        system=system,
        tools=tools,
        parallel_calls=choice.get("disable_parallel_tool_use") is not True,
        stream=body.get("stream") is True,
        tools_chars=len(dumps(body["tools"])) if tools else 0,
    )


def _check_options(body: Json) -> None:
    if body.get("thread") is not None:
        # The vendor's SDKs send their tool loops as threads, in which later requests contain only new
        # messages. After a refusal with these details, they send the whole history instead.
        raise RequestRefused(
            "thread: this server stores no messages. Send the whole history.",
            "thread",
            details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
        )
    limit = body.get("max_tokens")
    if limit is None:
        raise RequestRefused("max_tokens: Field required", "max_tokens")
    if not isinstance(limit, int) or limit < 1:
        raise RequestRefused("max_tokens: Input should be greater than or equal to 1", "max_tokens")
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and not 0 <= temperature <= 1:
        raise RequestRefused("temperature: range: 0..1", "temperature")
    if body.get("tool_choice") is not None and not body.get("tools"):
        raise RequestRefused("tool_choice: tools must be provided to use tool_choice", "tool_choice")


def _system(body: Json) -> str:
    system = body.get("system")
    if system is None or isinstance(system, str):
        return system or ""
    blocks = as_list(system)
    if blocks is None:
        raise RequestRefused("system: Input should be a valid string or list", "system")
    return "\n\n".join(_text(f"system.{index}", as_object(block) or {}) for index, block in enumerate(blocks))


def _tools(body: Json) -> dict[str, Json]:
    stated = as_list(body.get("tools")) or []
    tools = [_tool(index, tool) for index, tool in enumerate(stated)]
    named = dict(tools)
    if len(named) != len(tools):
        raise RequestRefused("tools: Tool names must be unique.", "tools")
    return named


def _tool(index: int, value: object) -> tuple[str, Json]:
    tool = as_object(value) or {}
    where = f"tools.{index}.custom"
    name, schema = tool.get("name"), as_object(tool.get("input_schema"))
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise RequestRefused(f"{where}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'", "tools")
    if schema is None:
        raise RequestRefused(f"{where}.input_schema: Field required", "tools")
    if schema.get("type") != "object":
        raise RequestRefused(f"{where}.input_schema.type: Input should be 'object'", "tools")
    fault = schema_fault(schema)
    if fault is not None:
        raise RequestRefused(f"{where}.input_schema: JSON schema is invalid: {fault}", "tools")
    return name, schema


@dataclass(slots=True)
class _Turn:
    """Blocks of one role; the vendor merges adjacent messages of the same role."""

    role: str
    at: int
    items: list[Item] = field(default_factory=list[Item])

    @property
    def calls(self) -> list[str]:
        return [call.id for item in self.items if isinstance(item, AssistantTurn) for call in item.calls]

    @property
    def leading_results(self) -> list[str]:
        """Results before any text. Only these count as results of the previous turn."""
        results: list[str] = []
        for item in self.items:
            if not isinstance(item, ToolOutput):
                break
            results.append(item.call_id)
        return results

    @property
    def results(self) -> list[str]:
        return [item.call_id for item in self.items if isinstance(item, ToolOutput)]


def _turns(body: Json) -> list[_Turn]:
    messages = as_list(body.get("messages"))
    if messages is None:
        raise _refused("messages: Field required")
    if not messages:
        raise _refused("messages: at least one message is required")
    turns: list[_Turn] = []
    for index, value in enumerate(messages):
        message = as_object(value) or {}
        role = message.get("role")
        if role not in ("user", "assistant"):
            raise _refused(
                f"messages.{index}.role: Input should be 'user' or 'assistant', not {role!r}. System text "
                "belongs in the top-level `system` parameter."
            )
        if not turns or turns[-1].role != role:
            turns.append(_Turn(role, index))
        read = _user_items if role == "user" else _assistant_items
        turns[-1].items += read(f"messages.{index}", _blocks(index, message))
    if turns[0].role != "user":
        raise _refused('messages: first message must use the "user" role')
    if turns[-1].role != "user":
        raise _refused(
            "This model does not support assistant message prefill. The conversation must end with a user "
            "message."
        )
    return turns


def _blocks(index: int, message: Json) -> list[Any]:
    content = message.get("content")
    blocks = as_list(content)
    if isinstance(content, str):
        blocks = [{"type": "text", "text": content}] if content else []
    if blocks is None:
        raise _refused(f"messages.{index}.content: Field required")
    if not blocks:
        raise _refused(f"messages.{index}: all messages must have non-empty content")
    return blocks


def _user_items(where: str, blocks: list[Any]) -> list[Item]:
    items: list[Item] = []
    for index, value in enumerate(blocks):
        block, at = as_object(value) or {}, f"{where}.content.{index}"
        match _kind(at, block, _USER_BLOCKS):
            case "text":
                items.append(UserText(_text(at, block)))
            case "tool_result":
                items.append(_result(at, block))
            case _:
                items.append(UserText(""))
    return items


def _assistant_items(where: str, blocks: list[Any]) -> list[Item]:
    texts: list[str] = []
    calls: list[Call] = []
    thinking: list[str] = []
    for index, value in enumerate(blocks):
        block, at = as_object(value) or {}, f"{where}.content.{index}"
        match _kind(at, block, _ASSISTANT_BLOCKS):
            case "text":
                texts.append(_text(at, block))
            case "tool_use":
                calls.append(_call(at, block))
            case "thinking":
                thinking.append(signed_thinking(at, block))
            case _:
                pass
    return [AssistantTurn("".join(texts), tuple(calls), tuple(thinking))]


def _kind(where: str, block: Json, allowed: frozenset[str]) -> str:
    kind = block.get("type")
    if kind not in allowed:
        raise _refused(
            f"{where}: Input tag {kind!r} found using 'type' does not match any of the expected tags: "
            + ", ".join(f"'{name}'" for name in sorted(allowed))
        )
    return str(kind)


def _text(where: str, block: Json) -> str:
    text = block.get("text")
    if not isinstance(text, str):
        raise _refused(f"{where}.text: Field required")
    if not text:
        raise _refused(f"{where}: text content blocks must be non-empty")
    if text.isspace():
        raise _refused(f"{where}: text content blocks must contain non-whitespace text")
    return text


def _refused(text: str) -> RequestRefused:
    return RequestRefused(text, "messages")


def _call(where: str, block: Json) -> Call:
    call_id, name, arguments = block.get("id"), block.get("name"), as_object(block.get("input"))
    if not isinstance(call_id, str) or not TOOL_NAME.fullmatch(call_id):
        raise _refused(f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise _refused(f"{where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
    if arguments is None:
        raise _refused(f"{where}.tool_use.input: Input should be a valid dictionary")
    return Call(call_id, name, dumps(arguments))


def _result(where: str, block: Json) -> ToolOutput:
    call_id, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(call_id, str):
        raise _refused(f"{where}.tool_result.tool_use_id: Field required")
    if content is None or isinstance(content, str):
        return ToolOutput(call_id, content or "", block.get("is_error") is True)
    parts = as_list(content)
    if parts is None:
        raise _refused(f"{where}.tool_result.content: Input should be a valid string or list")
    texts = [
        _text(f"{where}.tool_result.content.{index}", part)
        for index, part in enumerate(as_object(value) or {} for value in parts)
        if _kind(f"{where}.tool_result.content.{index}", part, _USER_BLOCKS - {"tool_result"}) == "text"
    ]
    return ToolOutput(call_id, "\n".join(texts), block.get("is_error") is True)


def _check_pairs(turns: list[_Turn]) -> None:
    seen: set[str] = set()
    calls: list[str] = []
    calls_at = 0
    for turn in turns:
        _check_results(turn, calls, calls_at)
        calls, calls_at = turn.calls, turn.at
        if len(set(calls)) != len(calls) or seen.intersection(calls):
            raise _refused("messages: `tool_use` ids must be unique")
        seen.update(calls)


def _check_results(turn: _Turn, calls: list[str], calls_at: int) -> None:
    results = turn.results
    for result in results:
        if result not in calls:
            raise _refused(
                f"messages.{turn.at}: unexpected `tool_use_id` found in `tool_result` blocks: {result}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if results.count(result) > 1:
            raise _refused(
                f"messages.{turn.at}: each tool_use must have a single result. Found multiple `tool_result` "
                f"blocks with id: {result}"
            )
    missing = [call for call in calls if call not in turn.leading_results]
    if missing:
        raise _refused(
            f"messages.{calls_at}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            + ", ".join(missing)
            + ". Each `tool_use` block must have a corresponding `tool_result` block in the next message."
        )
