"""The rules of `POST /v1/messages`."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from banksman.model_server.anthropic_reply import signature_of
from banksman.model_server.chat import Json, RequestRefused, as_object
from tests.support.strict_requests.rules import TOOL_NAME, as_list, schema_fault

_USER_BLOCKS = frozenset({"text", "image", "document", "search_result", "tool_result"})
_ASSISTANT_BLOCKS = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})


def check_message(body: Json) -> None:
    """Raise `RequestRefused` if a body breaks a rule of the vendor."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise RequestRefused("model: Field required", "model")
    _check_options(body)
    _check_tools(body)
    _check_pairs(_turns(body))
    _check_system(body)


def _check_options(body: Json) -> None:
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


def _check_system(body: Json) -> None:
    system = body.get("system")
    if system is None or isinstance(system, str):
        return
    blocks = as_list(system)
    if blocks is None:
        raise RequestRefused("system: Input should be a valid string or list", "system")
    for index, block in enumerate(blocks):
        _check_text(f"system.{index}", as_object(block) or {})


def _check_tools(body: Json) -> None:
    names = [_tool(index, tool) for index, tool in enumerate(as_list(body.get("tools")) or [])]
    if len(set(names)) != len(names):
        raise RequestRefused("tools: Tool names must be unique.", "tools")


def _tool(index: int, value: object) -> str:
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
    return name


@dataclass(slots=True)
class _Turn:
    """Blocks of one role; the vendor merges adjacent messages of the same role."""

    role: str
    at: int
    blocks: list[Json] = field(default_factory=list[Json])

    @property
    def calls(self) -> list[str]:
        return [block["id"] for block in self.blocks if block["type"] == "tool_use"]

    @property
    def leading_results(self) -> list[str]:
        """Results before any text. Only these count as results of the previous turn."""
        first = next((at for at, block in enumerate(self.blocks) if block["type"] != "tool_result"), None)
        return [block["tool_use_id"] for block in self.blocks[:first]]

    @property
    def results(self) -> list[str]:
        return [block["tool_use_id"] for block in self.blocks if block["type"] == "tool_result"]

    @property
    def thinking(self) -> list[str]:
        return [block["thinking"] for block in self.blocks if block["type"] == "thinking"]


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
        check = _check_user_block if role == "user" else _check_assistant_block
        for at, block in enumerate(_blocks(index, message)):
            check(f"messages.{index}.content.{at}", block)
            turns[-1].blocks.append(block)
    if turns[0].role != "user":
        raise _refused('messages: first message must use the "user" role')
    if turns[-1].role != "user":
        raise _refused(
            "This model does not support assistant message prefill. The conversation must end with a user "
            "message."
        )
    return turns


def _blocks(index: int, message: Json) -> list[Json]:
    content = message.get("content")
    blocks = as_list(content)
    if isinstance(content, str):
        blocks = [{"type": "text", "text": content}] if content else []
    if blocks is None:
        raise _refused(f"messages.{index}.content: Field required")
    if not blocks:
        raise _refused(f"messages.{index}: all messages must have non-empty content")
    return [as_object(block) or {} for block in blocks]


def _check_user_block(where: str, block: Json) -> None:
    match _kind(where, block, _USER_BLOCKS):
        case "text":
            _check_text(where, block)
        case "tool_result":
            _check_result(where, block)
        case _:
            pass


def _check_assistant_block(where: str, block: Json) -> None:
    match _kind(where, block, _ASSISTANT_BLOCKS):
        case "text":
            _check_text(where, block)
        case "tool_use":
            _check_call(where, block)
        case "thinking":
            _check_thinking(where, block)
        case _:
            pass


def _kind(where: str, block: Json, allowed: frozenset[str]) -> str:
    kind = block.get("type")
    if kind not in allowed:
        raise _refused(
            f"{where}: Input tag {kind!r} found using 'type' does not match any of the expected tags: "
            + ", ".join(f"'{name}'" for name in sorted(allowed))
        )
    return str(kind)


def _check_text(where: str, block: Json) -> None:
    text = block.get("text")
    if not isinstance(text, str):
        raise _refused(f"{where}.text: Field required")
    if not text:
        raise _refused(f"{where}: text content blocks must be non-empty")
    if text.isspace():
        raise _refused(f"{where}: text content blocks must contain non-whitespace text")


def _refused(text: str) -> RequestRefused:
    return RequestRefused(text, "messages")


def _check_call(where: str, block: Json) -> None:
    call_id, name, arguments = block.get("id"), block.get("name"), as_object(block.get("input"))
    if not isinstance(call_id, str) or not TOOL_NAME.fullmatch(call_id):
        raise _refused(f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise _refused(f"{where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
    if arguments is None:
        raise _refused(f"{where}.tool_use.input: Input should be a valid dictionary")


def _check_result(where: str, block: Json) -> None:
    call_id, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(call_id, str):
        raise _refused(f"{where}.tool_result.tool_use_id: Field required")
    if content is None or isinstance(content, str):
        return
    parts = as_list(content)
    if parts is None:
        raise _refused(f"{where}.tool_result.content: Input should be a valid string or list")
    for index, part in enumerate(as_object(value) or {} for value in parts):
        at = f"{where}.tool_result.content.{index}"
        if _kind(at, part, _USER_BLOCKS - {"tool_result"}) == "text":
            _check_text(at, part)


def _check_thinking(where: str, block: Json) -> None:
    thinking = block.get("thinking")
    if not isinstance(thinking, str):
        raise _refused(f"{where}.thinking.thinking: Field required")
    if block.get("signature") != signature_of(thinking):
        raise _refused(f"{where}: Invalid `signature` in `thinking` block")


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


_MAX_CALLS = 5_000


class ThinkingChecks:
    """Checks that clients return thinking blocks unchanged, as the vendor requires with tools.

    https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking#preserving-thinking-blocks
    """

    def __init__(self) -> None:
        self._by_call: OrderedDict[tuple[str, str], str] = OrderedDict()

    def sent(self, model: str, calls: list[str], thinking: str) -> None:
        """Store the thinking of a reply with calls; that of the last 5,000 calls is known."""
        for call in calls:
            self._by_call[(model, call)] = thinking
            if len(self._by_call) > _MAX_CALLS:
                self._by_call.popitem(last=False)

    def check(self, body: Json) -> None:
        """Refuse a valid request that lacks the thinking of calls whose results end it."""
        turns = _turns(body)
        if len(turns) < 2 or turns[-1].blocks[-1]["type"] != "tool_result":
            return
        for call in turns[-2].calls:
            thinking = self._by_call.get((body["model"], call))
            if thinking and turns[-2].thinking != [thinking]:
                raise _refused(
                    "messages: the assistant message with tool_use must contain its original thinking block, "
                    f"unchanged; the block of {call} is missing"
                )
