"""The rules of `POST /v1/chat/completions`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from banksman.model_server.chat import Json, RequestRefused, as_object
from tests.support.strict_requests.rules import TOOL_NAME, as_list, schema_fault

NO_PARAMETERS: Json = {"type": "object", "properties": {}}
_ROLES = "'system', 'developer', 'user', 'assistant', 'tool'"


def object_at(where: str, value: object) -> Json:
    """Return an object of the request; refuse any other value."""
    found = as_object(value)
    if found is None:
        raise RequestRefused(f"Invalid type for '{where}': expected an object.", where)
    return found


def invalid_value(text: str, param: str) -> RequestRefused:
    """Return the refusal of a value that the vendor does not know."""
    return RequestRefused(text, param, code="invalid_value")


def check_schema(function: str, schema: Json, param: str) -> None:
    """Refuse a schema that cannot describe arguments."""
    fault = schema_fault(schema)
    if fault is not None:
        text = f"Invalid schema for function '{function}': {fault}."
        raise RequestRefused(text, param, code="invalid_function_parameters")


@dataclass(frozen=True, slots=True)
class PartKinds:
    """The kinds of content parts; only those of `text` and `refusal` have a text."""

    text: frozenset[str]
    other: frozenset[str]
    supported: str
    """The kinds as the vendor lists them."""

    def check(self, value: object, param: str) -> None:
        """Refuse a part of another kind, or without its text."""
        part = as_object(value) or {}
        kind = part.get("type")
        if kind in self.other:
            return
        text = part.get("refusal" if kind == "refusal" else "text")
        if kind not in self.text | {"refusal"} or not isinstance(text, str):
            raise invalid_value(f"Invalid value: {kind!r}. Supported values are: {self.supported}", param)


_PARTS = PartKinds(
    text=frozenset({"text"}),
    other=frozenset({"image_url", "input_audio", "file"}),
    supported="'text', 'image_url', 'input_audio', 'refusal', and 'file', each with its own field.",
)


def check_chat_completion(body: Json) -> None:
    """Raise `RequestRefused` if a body breaks a rule of the vendor."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise RequestRefused("you must provide a model parameter", "model")
    _check_options(body)
    _check_tools(body)
    history = _History()
    for index, message in enumerate(_messages(body)):
        history.read(index, message)
    history.close()


def _messages(body: Json) -> list[Any]:
    messages = as_list(body.get("messages"))
    if messages is None:
        raise RequestRefused("Missing required parameter: 'messages'.", "messages")
    if not messages:
        raise _empty_array("messages")
    return messages


def _empty_array(where: str) -> RequestRefused:
    text = f"Invalid '{where}': empty array. Expected an array with minimum length 1."
    return RequestRefused(text, where, code="empty_array")


def _check_options(body: Json) -> None:
    if body.get("stream_options") is not None and body.get("stream") is not True:
        raise RequestRefused(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options"
        )
    for name in ("max_tokens", "max_completion_tokens"):
        limit = body.get(name)
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise RequestRefused(
                f"Invalid '{name}': expected an integer of at least 1, but got {limit!r} instead.",
                name,
                code="integer_below_min_value",
            )
    if body.get("n") not in (None, 1):
        raise RequestRefused("Invalid 'n': this server returns one choice.", "n")
    for name in ("tool_choice", "parallel_tool_calls"):
        if body.get(name) is not None and body.get("tools") is None:
            raise RequestRefused(f"'{name}' is only allowed when 'tools' are specified.", name)


def _check_tools(body: Json) -> None:
    stated = body.get("tools")
    if stated is None:
        return
    tools = as_list(stated)
    if not tools:
        raise RequestRefused(
            "Invalid 'tools': expected an array with minimum length 1.", "tools", code="empty_array"
        )
    for index, tool in enumerate(tools):
        _check_tool(index, tool)


def _check_tool(index: int, value: object) -> None:
    tool = as_object(value) or {}
    function = as_object(tool.get("function"))
    if tool.get("type") != "function" or function is None:
        raise RequestRefused(
            f"Invalid 'tools[{index}]': expected an object of type 'function'.", f"tools[{index}]"
        )
    name = function.get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise invalid_value(
            f"Invalid 'tools[{index}].function.name': string does not match pattern. Expected a string that "
            "matches the pattern '^[a-zA-Z0-9_-]+$' with maximum length 64.",
            f"tools[{index}].function.name",
        )
    schema = function.get("parameters", NO_PARAMETERS)
    check_schema(name, as_object(schema) or {}, f"tools[{index}].function.parameters")


class _History:
    def __init__(self) -> None:
        self._calls_at = 0
        self._call_ids: frozenset[str] = frozenset()
        self._waiting: list[str] = []

    def read(self, index: int, value: object) -> None:
        where = f"messages[{index}]"
        message = object_at(where, value)
        role = message.get("role")
        if role == "tool":
            self._read_result(where, message)
            return
        self.close()
        self._call_ids = frozenset()
        match role:
            case "system" | "developer" | "user":
                _check_text(where, message.get("content"))
            case "assistant":
                self._read_reply(index, where, message)
            case _:
                text = f"Invalid value: {role!r}. Supported values are: {_ROLES}."
                raise invalid_value(text, f"{where}.role")

    def close(self) -> None:
        if self._waiting:
            raise RequestRefused(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                "'tool_call_id'. The following tool_call_ids did not have response messages: "
                + ", ".join(self._waiting),
                f"messages.[{self._calls_at}].role",
            )

    def _read_reply(self, index: int, where: str, message: Json) -> None:
        calls = _calls(where, message)
        content = message.get("content")
        if content is not None or not (calls or message.get("refusal")):
            _check_text(where, content)
        self._calls_at = index
        self._waiting = calls
        self._call_ids = frozenset(self._waiting)
        if len(self._call_ids) != len(calls):
            raise RequestRefused(
                f"Duplicate value for 'tool_call_id' in '{where}.tool_calls'.", f"{where}.tool_calls"
            )

    def _read_result(self, where: str, message: Json) -> None:
        call_id = message.get("tool_call_id")
        if not isinstance(call_id, str):
            raise RequestRefused(
                f"Missing required parameter: '{where}.tool_call_id'.", f"{where}.tool_call_id"
            )
        if not self._call_ids:
            raise RequestRefused(
                "Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
                "'tool_calls'.",
                f"{where}.role",
            )
        if call_id not in self._waiting:
            is_repeat = call_id in self._call_ids
            reason = "already has a result" if is_repeat else "is not in the preceding 'tool_calls'"
            raise RequestRefused(
                f"Invalid parameter: 'tool_call_id' {call_id!r} {reason}.", f"{where}.tool_call_id"
            )
        self._waiting.remove(call_id)
        _check_text(where, message.get("content"))


def _calls(where: str, message: Json) -> list[str]:
    """Return the ids of the calls of a message."""
    stated = message.get("tool_calls")
    if stated is None:
        return []
    calls = as_list(stated)
    if not calls:
        raise _empty_array(f"{where}.tool_calls")
    return [_call(f"{where}.tool_calls[{index}]", call) for index, call in enumerate(calls)]


def _call(where: str, value: object) -> str:
    call = as_object(value) or {}
    function = as_object(call.get("function")) or {}
    call_id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
    if call.get("type") != "function":
        raise RequestRefused(f"Invalid value for '{where}.type': expected 'function'.", f"{where}.type")
    if not isinstance(call_id, str) or not call_id:
        raise RequestRefused(f"Missing required parameter: '{where}.id'.", f"{where}.id")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        text = f"Invalid '{where}.function.name': string does not match pattern."
        raise invalid_value(text, f"{where}.function.name")
    if not isinstance(arguments, str):
        raise RequestRefused(
            f"Invalid type for '{where}.function.arguments': expected a string, but got "
            f"{_type_name(arguments)} instead.",
            f"{where}.function.arguments",
            code="invalid_type",
        )
    return call_id


def _check_text(where: str, content: object) -> None:
    if isinstance(content, str):
        return
    parts = as_list(content)
    if parts is None:
        text = f"Invalid value for 'content': expected a string, got {_type_name(content)}."
        raise RequestRefused(text, f"{where}.content")
    if not parts:
        text = f"Invalid '{where}.content': empty array."
        raise RequestRefused(text, f"{where}.content", code="empty_array")
    for index, part in enumerate(parts):
        _PARTS.check(part, f"{where}.content[{index}].type")


def _type_name(value: object) -> str:
    return "null" if value is None else type(value).__name__
