"""Reads what servers send. A common fault is corrected; a part that cannot be used never hides the others."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

import anyio.abc
import mcp_types as types
from mcp.shared.dispatcher import CallOptions, Dispatcher, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.transport_context import TransportContext
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from banksman.contracts.wire import JsonObject

_OLDEST: Final = HANDSHAKE_PROTOCOL_VERSIONS[0]
_NOT_CACHED: Final[JsonObject] = {"cacheScope": "private", "ttlMs": 0, "resultType": "complete"}
"""Fields that lists must have since revision 2026-07-28."""
_ANY_OBJECT: Final[JsonObject] = {"type": "object"}
_BLOCK: Final[TypeAdapter[types.ContentBlock]] = TypeAdapter(types.ContentBlock)
_LISTED: Final[dict[str, tuple[str, TypeAdapter[Any]]]] = {
    "resources/list": ("resources", TypeAdapter[Any](types.Resource)),
    "resources/templates/list": ("resourceTemplates", TypeAdapter[Any](types.ResourceTemplate)),
    "prompts/list": ("prompts", TypeAdapter[Any](types.Prompt)),
}
_MAX_VALUE_CHARS: Final = 80
MAX_PAGES: Final = 20
"""Maximum pages of a list."""
Page = TypeVar("Page", bound=types.PaginatedResult)


async def pages(request: Callable[..., Awaitable[Page]]) -> AsyncGenerator[Page]:
    """Yield the pages of a list, each once; raises the errors of `request`."""
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(MAX_PAGES):
        page = await request(params=types.PaginatedRequestParams(cursor=cursor))
        yield page
        cursor = page.next_cursor
        if not cursor or cursor in seen:
            return
        seen.add(cursor)


def messages_of(line: bytes) -> Iterator[JSONRPCMessage]:
    """Yield the messages of a line, several of a batch (revision 2025-03-26); raise `ValueError` for none."""
    try:
        yield jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError:
        for one in _list(from_json(line.removeprefix(b"\xef\xbb\xbf"))):
            yield _corrected(one)


def _corrected(value: object) -> JSONRPCMessage:
    if not isinstance(value, dict):
        raise ValueError("a message is an object")
    message = {**cast(JsonObject, value), "jsonrpc": "2.0"}
    if isinstance(number := message.get("id"), float) and number.is_integer():
        message["id"] = int(number)
    try:
        return jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValidationError:
        if message.get("id") is None or "method" in message:
            raise
    # A request waits for this response: without one, it would wait until its time-out.
    found = message.get("error") or message.get("result")
    text = f"an invalid response: {json.dumps(found)[:_MAX_VALUE_CHARS]}"
    error = types.ErrorData(code=types.INTERNAL_ERROR, message=text)
    return types.JSONRPCError(jsonrpc="2.0", id=cast(types.RequestId, message["id"]), error=error)


@dataclass(frozen=True, slots=True)
class ReadableResults(Dispatcher[TransportContext]):
    """Corrects the results of requests before the SDK, which refuses a whole result for one faulty part."""

    inner: Dispatcher[TransportContext]
    unusable: dict[str, str] = field(default_factory=dict[str, str])
    """Why a tool cannot be used, by its name; texts of the server."""

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        await self.inner.run(on_request, on_notify, on_notify_intercept, task_status=task_status)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        await self.inner.notify(method, params, opts)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        result = await self.inner.send_raw_request(method, params, opts)
        if not isinstance(result.get("nextCursor"), str):
            result.pop("nextCursor", None)
        match method:
            case "initialize":
                return result | _initialized(result)
            case "tools/list":
                return _NOT_CACHED | result | {"tools": list(self._usable(_list(result.get("tools"))))}
            case "tools/call" if result.get("resultType", "complete") == "complete":
                return _call_result(result)
            case _ if method in _LISTED:
                name, model = _LISTED[method]
                return (
                    _NOT_CACHED
                    | result
                    | {name: [one for one in _list(result.get(name)) if _fits(model, one)]}
                )
            case _:
                return result

    def _usable(self, tools: list[object]) -> Iterator[JsonObject]:
        for number, tool in enumerate(tools, 1):
            name = cast(JsonObject, tool).get("name") if isinstance(tool, dict) else None
            try:
                yield _tool(cast(object, tool))
            except ValueError as error:
                self.unusable[str(name or f"tool {number}")] = str(error)


def _initialized(result: JsonObject) -> JsonObject:
    version, info = result.get("protocolVersion"), result.get("serverInfo")
    named = {**info} if isinstance(info, dict) else {}
    corrected: JsonObject = {
        "capabilities": result.get("capabilities") or {},
        "serverInfo": {"name": str(named.get("name", "")), "version": str(named.get("version", ""))},
    }
    if isinstance(version, str) and version < _OLDEST:
        # A draft before the first revision; its requests and results are those of the first revision.
        corrected["protocolVersion"] = _OLDEST
    return corrected


def _tool(tool: object) -> JsonObject:
    """Return the parts of a tool that are used; raise `ValueError` with the reason if it cannot be called."""
    if not isinstance(tool, dict):
        raise ValueError("it is not an object")
    parts = cast(JsonObject, tool)
    name, hints = parts.get("name"), parts.get("annotations")
    if not isinstance(name, str) or not name:
        raise ValueError("it has no name")
    read_only = isinstance(hints, dict) and hints.get("readOnlyHint") is True
    texts: JsonObject = {
        key: parts[key] for key in ("title", "description") if isinstance(parts.get(key), str)
    }
    schema = _input_schema(parts.get("inputSchema"))
    return {"name": name, "inputSchema": schema, "annotations": {"readOnlyHint": read_only}, **texts}


def _input_schema(schema: object) -> JsonObject:
    if schema is None or schema is True:
        return _ANY_OBJECT
    if not isinstance(schema, dict):
        raise ValueError(f"its inputSchema is {json.dumps(schema)[:_MAX_VALUE_CHARS]}, not an object")
    given = cast(JsonObject, schema)
    kind = given.get("type") or "object"
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise ValueError(f"its inputSchema has the type {json.dumps(kind)[:_MAX_VALUE_CHARS]}, not an object")
    return given if given.get("type") == "object" else {**given, "type": "object"}


def _call_result(result: JsonObject) -> JsonObject:
    """Return a result whose blocks the SDK accepts: an unknown or faulty block becomes text."""
    structured = result.get("structuredContent")
    if structured is not None and not isinstance(structured, dict):
        structured = {"value": structured}
    content: list[Any] = [
        block if _fits(_BLOCK, block) else {"type": "text", "text": _text(block)}
        for block in _list(result.get("content"))
    ]
    corrected: dict[str, Any] = {
        "content": content,
        "isError": result.get("isError") is True,
        "resultType": "complete",
        **({} if structured is None else {"structuredContent": structured}),
    }
    return corrected


def _text(block: object) -> str:
    text = cast(JsonObject, block).get("text") if isinstance(block, dict) else block
    return text if isinstance(text, str) else json.dumps(block, ensure_ascii=False)


def _list(value: object) -> list[object]:
    if value is None:
        return []
    return cast(list[object], value) if isinstance(value, list) else [value]


def _fits(model: TypeAdapter[Any], value: object) -> bool:
    try:
        model.validate_python(value, by_name=False)
    except ValidationError:
        return False
    return True
