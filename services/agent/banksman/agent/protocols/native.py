"""The vendors' own tool calls."""

from __future__ import annotations

import json
from dataclasses import replace

import structlog

from banksman.agent.protocols.base import (
    MAX_NAME_CHARS,
    Calls,
    DeltaFilter,
    ModelReply,
    ModelRequest,
    RawCall,
    Reading,
    RequestedCall,
    answer,
    truncated_text,
)
from banksman.agent.protocols.flatten import flatten, prose_call
from banksman.agent.protocols.json_text import written_call
from banksman.contracts.errors import BadInput
from banksman.contracts.wire import JsonObject, strict_json

_log = structlog.get_logger(__name__)


class Native:
    """Calls travel in the vendor's fields; the text of a reply is only text."""

    def prepare(self, request: ModelRequest) -> ModelRequest:
        """Show calls that were written as text as text again.

        Without tools all earlier calls are told in prose, because Anthropic refuses a history with calls in a
        request that defines no tools.
        """
        if request.tools:
            messages = flatten(request.messages, written_call, lambda said: said.protocol == "json_text")
        else:
            messages = flatten(request.messages, prose_call, lambda _: True)
        return replace(request, messages=messages)

    def read(self, reply: ModelReply, *, attempt: int = 1) -> Reading:
        """Calls where there are any and the model stopped for them, else the answer (R90, R91, R99).

        Compatible servers report `stop` for replies with calls, so that word does not hide them.
        """
        if not reply.calls or reply.finish_reason in ("content_filter", "unknown"):
            return answer(reply)
        calls = tuple(_read_call(call) for call in reply.calls)
        return Calls(truncated_text(reply.text or "") or None, calls)

    def delta_filter(self) -> DeltaFilter:
        """Everything may be shown: calls are not in the text."""
        return _Everything()


class _Everything:
    def feed(self, text: str) -> str:
        return text

    def flush(self) -> str:
        return ""


def _read_call(raw: RawCall) -> RequestedCall:
    name = raw.name[:MAX_NAME_CHARS]
    try:
        arguments = _arguments(raw.arguments)
    except BadInput as error:
        _log.warning("unreadable tool arguments", tool=name, error=error.expected)
        told = f"The arguments must be {error.expected}. Call the tool again with one JSON object."
        return RequestedCall(name, None, told, raw.provider_call_id)
    return RequestedCall(name, arguments, None, raw.provider_call_id)


def _arguments(written: str | JsonObject) -> JsonObject:
    """The arguments as an object; vendors send an empty text for a tool without parameters.

    Raises:
        BadInput: when they are not one JSON object.
    """
    text = written if isinstance(written, str) else json.dumps(written)
    value = strict_json(text, what="arguments") if text.strip() else {}
    if not isinstance(value, dict):
        raise BadInput("arguments", text[:120], "one JSON object")
    return value
