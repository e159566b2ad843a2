from __future__ import annotations

from typing import Any

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
)
from banksman.model_server.openai_request import (
    NO_PARAMETERS,
    PartKinds,
    check_schema,
    invalid_value,
    object_at,
)

_PARTS = PartKinds(
    text=frozenset({"input_text", "output_text", "text"}),
    other=frozenset({"input_image", "input_file", "input_audio"}),
    supported="'input_text', 'output_text', 'input_image', 'input_file', and 'refusal'.",
)


def parse_response(body: Json) -> ValidatedRequest:
    """Parse the body of `POST /v1/responses`, without items and tools that only the vendor executes."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise RequestRefused("Missing required parameter: 'model'.", "model")
    if body.get("previous_response_id") is not None:
        raise RequestRefused(
            "This server stores no responses: send the whole history as 'input'.",
            "previous_response_id",
            code="previous_response_not_found",
        )
    history = _Input()
    for index, item in enumerate(_items(body)):
        history.read(f"input[{index}]", item)
    history.close()
    instructions = body.get("instructions")
    system = [instructions] if isinstance(instructions, str) else []
    tools, namespaces = _tools(body)
    return ValidatedRequest(
        dialect="responses",
        model=model,
        items=tuple(history.items),
        system="\n\n".join([*system, *history.system]),
        tools=tools,
        namespaces=namespaces,
        parallel_calls=body.get("parallel_tool_calls") is not False,
        stream=body.get("stream") is True,
        tools_chars=len(dumps(body["tools"])) if tools else 0,
    )


def _items(body: Json) -> list[Any]:
    stated = body.get("input")
    items = [{"role": "user", "content": stated}] if isinstance(stated, str) else as_list(stated)
    if not items:
        raise RequestRefused("Missing required parameter: 'input'.", "input")
    return items


def _tools(body: Json) -> tuple[dict[str, Json], dict[str, str]]:
    stated = _objects(body.get("tools"))
    functions = dict(map(_tool, _functions(stated)))
    namespaces: dict[str, str] = {}
    for group in stated:
        namespace = group.get("name")
        if group.get("type") != "namespace" or not isinstance(namespace, str):
            continue
        for name, schema in map(_tool, _functions(_objects(group.get("tools")))):
            functions[_qualified(namespace, name)] = schema
            namespaces[_qualified(namespace, name)] = namespace
    return functions, namespaces


def _qualified(namespace: object, name: str) -> str:
    return f"{namespace}__{name}" if namespace else name


def _objects(value: object) -> list[Json]:
    return [as_object(entry) or {} for entry in as_list(value) or []]


def _functions(tools: list[Json]) -> list[Json]:
    return [tool for tool in tools if tool.get("type") == "function"]


def _tool(tool: Json) -> tuple[str, Json]:
    name = tool.get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        text = "Invalid 'tools.name': string does not match pattern '^[a-zA-Z0-9_-]+$'."
        raise invalid_value(text, "tools")
    schema = as_object(tool.get("parameters")) or NO_PARAMETERS
    check_schema(name, schema, "tools")
    return name, schema


class _Input:
    """Reads the items in order. The items of one reply, text and calls, become one turn."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.system: list[str] = []
        self._call_ids: set[str] = set()
        self._waiting: set[str] = set()

    def read(self, where: str, value: object) -> None:
        item = object_at(where, value)
        match item.get("type", "message"):
            case "message":
                self._read_message(where, item)
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

    def _read_message(self, where: str, item: Json) -> None:
        text = _text(where, item.get("content"))
        match item.get("role"):
            case "system" | "developer":
                self.system.append(text)
            case "user":
                self.items.append(UserText(text))
            case "assistant":
                self._add_to_turn(text, ())
            case role:
                supported = "'assistant', 'system', 'developer', and 'user'"
                text = f"Invalid value: {role!r}. Supported values are: {supported}."
                raise invalid_value(text, f"{where}.role")

    def _read_call(self, where: str, item: Json) -> None:
        fields = [item.get(name) for name in ("call_id", "name", "arguments")]
        match fields:
            case [str() as call_id, str() as name, str() as arguments] if call_id:
                self._call_ids.add(call_id)
                self._waiting.add(call_id)
                called = _qualified(item.get("namespace"), name)
                self._add_to_turn("", (Call(call_id, called, arguments),))
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
        self.items.append(ToolOutput(call_id, _text(where, item.get("output"))))

    def _add_to_turn(self, text: str, calls: tuple[Call, ...]) -> None:
        last = self.items[-1] if self.items else None
        if isinstance(last, AssistantTurn):
            self.items[-1] = AssistantTurn(last.text + text, last.calls + calls)
        else:
            self.items.append(AssistantTurn(text, calls))


def _text(where: str, content: object) -> str:
    if isinstance(content, str):
        return content
    parts = as_list(content)
    if parts is None:
        raise RequestRefused(f"Invalid type for '{where}': expected text or a list.", where)
    return "\n".join(_PARTS.text_of(part, f"{where}.content") for part in parts)
