"""The protocol in which calls are in the vendor's own fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from banksman.agent.protocols.base import (
    MAX_NAME_CHARS,
    MAX_REPLY_CHARS,
    DeltaFilter,
    ModelReply,
    ModelRequest,
    RawCall,
    Reading,
    RequestedCall,
    RequestedCalls,
    final_reply,
    flatten,
    log_unexpected,
    prose_call,
    truncated_text,
)
from banksman.agent.protocols.json_text import written_call
from banksman.agent.protocols.raw_calls import RawCallFilter, raw_calls
from banksman.agent.protocols.repairs import read_arguments, repaired
from banksman.contracts.errors import BadInput
from banksman.contracts.events import ModelNotice
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject
from banksman.prompting.templates import TERMINATE_KEY, TERMINATE_SCHEMA

_WRITTEN_AS_TEXT = ModelNotice(
    kind="repaired", text="The model wrote its calls as text; they were read as calls."
)

_log = structlog.get_logger(__name__)


class Native:
    """Calls are in the vendor's own fields, or in the text if a server does not know its model's format."""

    def prepare(self, request: ModelRequest) -> ModelRequest:
        """Return the request with the calls of the other protocol written as text.

        Without tools all earlier calls become prose, because Anthropic refuses a history with calls in a
        request that defines no tools.
        """
        tools = tuple(_with_terminate(tool) for tool in request.tools)
        if request.tools:
            messages = flatten(request.messages, written_call, lambda reply: reply.protocol == "json_text")
        else:
            messages = flatten(request.messages, prose_call, lambda _: True)
        return replace(request, messages=messages, tools=tools)

    def read(self, reply: ModelReply, *, attempt: int = 1, tools: Sequence[ToolDefinition] = ()) -> Reading:
        """Return the calls if there are any, else the final text (R90, R91, R99).

        Compatible servers report any finish reason for replies with calls, so none excludes calls. For a
        reason that may have cut the reply, only complete calls count.
        """
        text, written = reply.text or "", reply.calls
        notices: tuple[ModelNotice, ...] = ()
        if not written and tools and text and len(text) <= MAX_REPLY_CHARS:
            text, written = raw_calls(text, {tool.name for tool in tools})
            notices = (_WRITTEN_AS_TEXT,) if written else ()
        known = {tool.name: _with_terminate(tool) if notices else tool for tool in tools}
        read = [_read_call(call, known) for call in written]
        calls = tuple(call for call, _ in read)
        repairs = (notice for _, own in read for notice in own)
        if reply.finish_reason in ("content_filter", "unknown"):
            calls = tuple(call for call in calls if call.name and call.arguments is not None)
        if not calls:
            return final_reply(reply)
        if reply.finish_reason not in ("stop", "tool_calls"):
            log_unexpected(reply)
        extended = frozenset(tool.name for tool in tools if _takes_terminate(tool))
        own = tuple(_without_terminate(call, extended) for call in calls)
        return RequestedCalls(
            truncated_text(text.strip() if notices else text) or None, own, (*notices, *repairs)
        )

    def delta_filter(self) -> DeltaFilter:
        return RawCallFilter()


def _takes_terminate(tool: ToolDefinition) -> bool:
    """Return whether the model may decide that a call ends the run; False if the tool decides it."""
    properties = tool.input_schema.get("properties")
    return not (tool.terminate or (isinstance(properties, dict) and TERMINATE_KEY in properties))


def _with_terminate(tool: ToolDefinition) -> ToolDefinition:
    """Return a tool with the optional parameter that ends the run (R36)."""
    if not _takes_terminate(tool):
        return tool
    properties = tool.input_schema.get("properties")
    own = properties if isinstance(properties, dict) else {}
    schema = {**tool.input_schema, "properties": {**own, TERMINATE_KEY: TERMINATE_SCHEMA}}
    return tool.model_copy(update={"input_schema": schema})


def _without_terminate(call: RequestedCall, extended: frozenset[str]) -> RequestedCall:
    """Move `terminate`, which is no parameter of the tool itself, from the arguments to its field."""
    arguments = call.arguments or {}
    if call.name not in extended or TERMINATE_KEY not in arguments:
        return call
    terminate = arguments[TERMINATE_KEY]
    if not isinstance(terminate, bool):
        problem = f'"{TERMINATE_KEY}" must be true or false. Call the tool again.'
        return replace(call, arguments=None, arguments_error=problem)
    own = {name: value for name, value in arguments.items() if name != TERMINATE_KEY}
    return replace(call, arguments=own, terminate=terminate)


def _read_call(
    raw: RawCall, tools: Mapping[str, ToolDefinition]
) -> tuple[RequestedCall, tuple[ModelNotice, ...]]:
    """Return the call that a model wrote, and what was repaired in it."""
    call, repair = RequestedCall(raw.name[:MAX_NAME_CHARS], None, None, raw.provider_call_id), None
    try:
        arguments, repair = _arguments(raw.arguments)
        call = replace(call, arguments=arguments)
    except BadInput as error:
        _log.warning("malformed tool arguments", tool=call.name, error=error.expected)
        problem = f"The arguments must be {error.expected}. Call the tool again with one JSON object."
        call = replace(call, arguments_error=problem)
    return repaired(call, tools, repair)


def _arguments(written: str | JsonObject) -> tuple[JsonObject, str | None]:
    """Return the arguments as an object. Vendors send an empty text for a tool without parameters."""
    text = written if isinstance(written, str) else json.dumps(written)
    return read_arguments(text) if text.strip() else ({}, None)
