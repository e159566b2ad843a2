"""The rules of `POST /v1/responses`."""

from __future__ import annotations

from banksman.model_server.chat import Json, RequestRefused, as_object, objects
from tests.support.strict_requests.openai import (
    NO_PARAMETERS,
    PartKinds,
    check_schema,
    invalid_value,
    object_at,
)
from tests.support.strict_requests.rules import TOOL_NAME, as_list

_PARTS = PartKinds(
    text=frozenset({"input_text", "output_text", "text"}),
    other=frozenset({"input_image", "input_file", "input_audio"}),
    supported="'input_text', 'output_text', 'input_image', 'input_file', and 'refusal'.",
)


def check_response(body: Json) -> None:
    """Raise `RequestRefused` if a body breaks a rule of the vendor."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise RequestRefused("Missing required parameter: 'model'.", "model")
    stated = body.get("input")
    items = [{"role": "user", "content": stated}] if isinstance(stated, str) else as_list(stated)
    if not items:
        raise RequestRefused("Missing required parameter: 'input'.", "input")
    history = _Input()
    for index, item in enumerate(items):
        history.read(f"input[{index}]", item)
    history.close()
    tools = objects(body.get("tools"))
    for group in [tools, *(objects(tool.get("tools")) for tool in tools if tool.get("type") == "namespace")]:
        for tool in group:
            if tool.get("type") == "function":
                _check_tool(tool)


def _check_tool(tool: Json) -> None:
    name = tool.get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        text = "Invalid 'tools.name': string does not match pattern '^[a-zA-Z0-9_-]+$'."
        raise invalid_value(text, "tools")
    check_schema(name, as_object(tool.get("parameters")) or NO_PARAMETERS, "tools")


class _Input:
    def __init__(self) -> None:
        self._call_ids: set[str] = set()
        self._waiting: set[str] = set()

    def read(self, where: str, value: object) -> None:
        item = object_at(where, value)
        match item.get("type", "message"):
            case "message":
                _check_message(where, item)
            case "function_call":
                self._read_call(where, item)
            case "function_call_output":
                self._read_output(where, item)
            case _:
                pass

    def close(self) -> None:
        if self._waiting:
            first = min(self._waiting)
            raise RequestRefused(f"No tool output found for function call {first}.", "input")

    def _read_call(self, where: str, item: Json) -> None:
        match [item.get(name) for name in ("call_id", "name", "arguments")]:
            case [str() as call_id, str(), str()] if call_id:
                self._call_ids.add(call_id)
                self._waiting.add(call_id)
            case _:
                raise RequestRefused(
                    f"Missing required parameter: '{where}' needs 'call_id', 'name' and 'arguments'.", where
                )

    def _read_output(self, where: str, item: Json) -> None:
        call_id = item.get("call_id")
        if not isinstance(call_id, str) or call_id not in self._call_ids:
            raise RequestRefused(
                f"No tool call found for function call output with call_id {call_id}.", "input"
            )
        self._waiting.discard(call_id)
        _check_text(where, item.get("output"))


def _check_message(where: str, item: Json) -> None:
    _check_text(where, item.get("content"))
    role = item.get("role")
    if role not in ("system", "developer", "user", "assistant"):
        supported = "'assistant', 'system', 'developer', and 'user'"
        raise invalid_value(f"Invalid value: {role!r}. Supported values are: {supported}.", f"{where}.role")


def _check_text(where: str, content: object) -> None:
    if isinstance(content, str):
        return
    parts = as_list(content)
    if parts is None:
        raise RequestRefused(f"Invalid type for '{where}': expected text or a list.", where)
    for part in parts:
        _PARTS.check(part, f"{where}.content")
