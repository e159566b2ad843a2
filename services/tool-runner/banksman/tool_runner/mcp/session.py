"""A session with a server: its tools, one call, its result, and the forms that it shows to a user.

What a server sends is untrusted and limited.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import mimetypes
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from pydantic import FileUrl, JsonValue, TypeAdapter, ValidationError

from banksman.contracts.ids import digest
from banksman.contracts.mcp import MAX_TOOLS, McpTransport, RefusedTool, ServedPrompt, ServedTool, StdioServer
from banksman.contracts.tools import AskedInput
from banksman.contracts.wire import JsonObject, json_bytes
from banksman.contracts.workspaces import IMAGES_DIRECTORY
from banksman.runtime.redaction import Redaction
from banksman.tool_runner.mcp.connection import ConnectionState, ServerFailed
from banksman.tool_runner.mcp.held_calls import MAX_QUESTIONS, Questions
from banksman.tool_runner.mcp.messages import ReadableResults, pages
from banksman.tool_runner.mcp.prompts import added_tools, call_added, may_add_tools, served_prompts
from banksman.tool_runner.sandbox.base import WORKSPACE
from banksman.tool_runner.tools.toolbox import ToolOutcome, continuation, store_output
from banksman.tool_runner.workspaces.workspace import Workspace

MAX_FORM_BYTES: Final = 16 * 1024
"""Maximum bytes of the schema of a requested value."""
MAX_FIELDS: Final = 50
_FIELDS: Final = frozenset({"string", "number", "integer", "boolean", "array"})
_CANCELLED: Final = types.ElicitResult(action="cancel")
_REFUSED: Final = types.ErrorData(
    code=types.INVALID_PARAMS,
    message=f"only a form is shown to the user: an object of at most {MAX_FIELDS} plain fields",
)


async def answered(
    state: ConnectionState, params: types.ElicitRequestParams
) -> types.ElicitResult | types.ErrorData:
    """Pass a request to the user of the newest call; without a call, the server gets `cancel`."""
    if (questions := state.questions) is None:
        return _CANCELLED
    if (asked := _form(params, questions)) is None:
        return _REFUSED
    answer = await questions.ask(asked)
    match answer.outcome if answer is not None else None:
        case "provided" if answer is not None:
            return types.ElicitResult(action="accept", content=cast(dict[str, Any], answer.value))
        case "declined":
            return types.ElicitResult(action="decline")
        case _:
            return _CANCELLED


def _form(params: types.ElicitRequestParams, questions: Questions) -> AskedInput | None:
    """Return what a server requests; None unless it is a bounded form of plain fields."""
    if not isinstance(params, types.ElicitRequestFormParams):
        return None
    secrets = questions.secrets
    schema = cast(JsonObject, secrets.of_content(params.requested_schema))
    fields = schema.get("properties", {})
    if schema.get("type") != "object" or not isinstance(fields, dict) or len(fields) > MAX_FIELDS:
        return None
    plain = all(isinstance(one, dict) and one.get("type") in _FIELDS for one in fields.values())
    if not plain or json_bytes(schema) > MAX_FORM_BYTES:
        return None
    try:
        return AskedInput(message=secrets.of(params.message), schema=schema, expires_s=questions.wait_s)
    except ValidationError:
        return None


_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


@dataclass
class ResultContents:
    workspace: Workspace
    secrets: Redaction
    images: list[str] = field(default_factory=list[str])
    """Paths of the images that a model may see."""

    def text_of(self, block: types.ContentBlock) -> str:
        """Return a block as text; one that is not text is kept as a file, which the text names."""
        match block:
            case types.TextContent():
                return block.text
            case types.EmbeddedResource(resource=contents):
                return self.text_of_resource(contents)
            case types.ImageContent() | types.AudioContent():
                return self._kept(block.type, block.mime_type, block.data)
            case types.ResourceLink():
                return (
                    f"[resource {block.uri}: {block.title or block.name} {block.description or ''}".strip()
                    + "]"
                )

    def text_of_resource(self, contents: types.TextResourceContents | types.BlobResourceContents) -> str:
        if isinstance(contents, types.TextResourceContents):
            return contents.text
        media_type = contents.mime_type or "application/octet-stream"
        return self._kept(f"resource {contents.uri}", media_type, contents.blob)

    def _kept(self, kind: str, media_type: str, encoded: str) -> str:
        shown = f"{kind} {media_type}"
        try:
            data = base64.b64decode(encoded)
        except ValueError:
            return f"[{shown}, which is not base64]"
        text = data.decode("latin-1")
        if self.secrets.of(text) != text:
            return f"[{shown}, which contains a secret and is not kept]"
        suffix = mimetypes.guess_extension(media_type, strict=False) or ".bin"
        path = f"{IMAGES_DIRECTORY}/{hashlib.sha256(data).hexdigest()[:32]}{suffix}"
        if store_output(self.workspace, data, path) is None:
            return f"[{shown}, {len(data)} bytes, not kept: the workspace is full]"
        if media_type in _IMAGES:
            self.images.append(path)
        return f"[{shown}, {len(data)} bytes, kept as {path}]"


Streams: TypeAlias = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]

MAX_LISTED_BYTES: Final = 96 * 1024
"""Maximum bytes of the descriptions and schemas of all tools of a server."""
MAX_REFUSED: Final = 20
"""Maximum tools of a server that are named as unusable."""
MAX_REASON_CHARS: Final = 300
MAX_ROUNDS: Final = 10
"""Maximum replies to one call that request values."""
_RESULT: Final[TypeAdapter[types.CallToolResult | types.InputRequiredResult]] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
_US = types.Implementation(name="banksman", version="1")


@dataclass(frozen=True, slots=True)
class ServedTools:
    usable: tuple[ServedTool, ...]
    refused: tuple[RefusedTool, ...]
    """Tools that cannot be called; at most `MAX_REFUSED`."""
    prompts: tuple[ServedPrompt, ...] = ()


@dataclass(frozen=True, slots=True)
class Session:
    client: ClientSession
    results: ReadableResults
    added: set[str] = field(default_factory=set[str])
    """Names of the listed tools that the runner added."""


@contextlib.asynccontextmanager
async def session(
    streams: Streams, transport: McpTransport, state: ConnectionState
) -> AsyncGenerator[Session]:
    """Open a session with the handshake `initialize`; without it if the server refuses the handshake."""
    roots = _workspace_root if isinstance(transport, StdioServer) else None
    results = ReadableResults(JSONRPCDispatcher(*streams))

    async def elicited(
        context: object, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        return await answered(state, params)

    client = ClientSession(
        dispatcher=results, client_info=_US, list_roots_callback=roots, elicitation_callback=elicited
    )
    async with client as opened:
        try:
            await opened.initialize()
        except MCPError:
            try:
                await opened.discover()
            except (MCPError, ValidationError, RuntimeError) as error:
                raise ServerFailed(f"the server accepts no session: {_shown(error)}") from error
        except (ValidationError, RuntimeError) as error:
            raise ServerFailed(f"the server accepts no session: {_shown(error)}") from error
        yield Session(opened, results)


async def _workspace_root(context: object) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri=FileUrl(f"file://{WORKSPACE}"), name="workspace")])


async def served_tools(session: Session, secrets: Redaction) -> ServedTools:
    """Return the tools of a server, at most `MAX_TOOLS` and `MAX_LISTED_BYTES`, and its prompts."""
    found: dict[str, ServedTool] = {}
    refused = session.results.unusable
    size = 0
    async for tool in _listed(session):
        if tool.name in found:
            continue
        if (one := _served(tool, secrets)) is None:
            refused[tool.name] = "its name contains a secret"
            continue
        size += len(one.model_dump_json())
        if len(found) == MAX_TOOLS or size > MAX_LISTED_BYTES:
            refused[tool.name] = f"at most {MAX_TOOLS} tools and {MAX_LISTED_BYTES} bytes are listed"
            break
        found[tool.name] = one
    prompts = await served_prompts(session.client, secrets)
    return ServedTools(tuple(found.values()), tuple(_refused(refused, secrets)), prompts)


def _refused(reasons: dict[str, str], secrets: Redaction) -> Iterator[RefusedTool]:
    for name, reason in itertools.islice(reasons.items(), MAX_REFUSED):
        yield RefusedTool(name=secrets.of(name)[:256], reason=secrets.of(reason)[:MAX_REASON_CHARS])


async def served_tool(session: Session, name: str, secrets: Redaction) -> ServedTool | None:
    async for tool in _listed(session):
        if tool.name == name:
            return _served(tool, secrets)
    return None


async def call(
    session: Session, name: str, arguments: JsonObject, on_progress: ProgressFnT
) -> types.CallToolResult:
    if name in session.added:
        return await call_added(session.client, name, arguments)
    # Not `session.call_tool`: it validates the result with the server's schema, which can take unlimited
    # time.
    params = types.CallToolRequestParams(name=name, arguments=arguments)
    for _ in range(MAX_ROUNDS):
        request = types.CallToolRequest(params=params)
        result = await session.client.send_request(request, _RESULT, progress_callback=on_progress)
        if isinstance(result, types.CallToolResult):
            return result
        params = await _with_responses(session.client, params, result)
    raise ServerFailed(f"the server requested values more than {MAX_ROUNDS} times")


async def _with_responses(
    client: ClientSession, params: types.CallToolRequestParams, wanted: types.InputRequiredResult
) -> types.CallToolRequestParams:
    """Return a call with what its server requested in the reply to it (revision 2026-07-28)."""
    responses: types.InputResponses = {}
    for key, request in itertools.islice((wanted.input_requests or {}).items(), MAX_QUESTIONS):
        context = ClientRequestContext(session=client, request_id=key)
        response = await client.dispatch_input_request(context, request)
        if isinstance(response, types.ErrorData):
            raise MCPError.from_error_data(response)
        responses[key] = response
    return params.model_copy(update={"input_responses": responses, "request_state": wanted.request_state})


async def _listed(session: Session) -> AsyncGenerator[types.Tool]:
    names: set[str] = set()
    async for tool in _own_tools(session.client):
        names.add(tool.name)
        yield tool
    async for tool in added_tools(session.client):
        if tool.name not in names:
            session.added.add(tool.name)
            yield tool


async def _own_tools(client: ClientSession) -> AsyncGenerator[types.Tool]:
    try:
        async for page in pages(client.list_tools):
            for tool in page.tools:
                yield tool
    except (MCPError, ValidationError) as error:
        lacks = isinstance(error, MCPError) and error.error.code == types.METHOD_NOT_FOUND
        if not (lacks and may_add_tools(client)):
            raise ServerFailed(f"the server does not list its tools: {_shown(error)}") from error


def _served(tool: types.Tool, secrets: Redaction) -> ServedTool | None:
    """Return a tool with the digest of all texts that models and administrators read.

    None if its name contains a secret: a tool cannot be called by another name.
    """
    description, schema = tool.description or tool.title or tool.name, tool.input_schema
    read_only = bool(tool.annotations and tool.annotations.read_only_hint)
    canonical = _canonical(tool.name, description, schema, read_only)
    if secrets.of(canonical) != canonical:
        if secrets.of(tool.name) != tool.name:
            return None
        description = secrets.of(description)
        schema = cast(JsonObject, secrets.of_content(schema))
        canonical = _canonical(tool.name, description, schema, read_only)
    return ServedTool(
        name=tool.name[:256],
        description=description[:8_000],
        input_schema=schema,
        read_only=read_only,
        digest=digest(canonical.encode("utf-8", "surrogatepass")),
    )


def _canonical(*parts: JsonValue) -> str:
    return json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _shown(error: Exception) -> str:
    return error.error.message if isinstance(error, MCPError) else type(error).__name__


def outcome_of(
    result: types.CallToolResult, secrets: Redaction, workspace: Workspace, max_chars: int
) -> ToolOutcome:
    contents = ResultContents(workspace, secrets)
    text = secrets.of(_text(result, contents))
    truncated = len(text) > max_chars
    value: JsonObject = {"success": not result.is_error, "truncated": truncated}
    value["error" if result.is_error else "result"] = text[:max_chars]
    if result.is_error:
        value["error_kind"] = "tool_error"
    if contents.images:
        value["images"] = [*contents.images]
    whole = text.encode("utf-8", "replace") if truncated else None
    if whole is not None and (path := store_output(workspace, whole)):
        shown = len(text[:max_chars].encode("utf-8", "replace"))
        value |= {"full_output_path": path, "more": continuation(path, shown)}
    return ToolOutcome(
        value=value,
        is_error=result.is_error,
        error_kind="tool_error" if result.is_error else None,
        truncated=truncated,
        output=whole,
    )


def _text(result: types.CallToolResult, contents: ResultContents) -> str:
    """Return the text content or, without any, the structured content, which servers repeat as text."""
    text = "\n".join(contents.text_of(block) for block in result.content)
    if text.strip() or result.structured_content is None:
        return text
    return json.dumps(result.structured_content, ensure_ascii=False)
