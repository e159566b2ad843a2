"""The wire formats of the vendors, each as the functions that parse its requests and write its replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from banksman.model_server import anthropic_reply, openai_reply, responses_reply
from banksman.model_server.anthropic_request import parse_message
from banksman.model_server.chat import Dialect, RequestRefused, ValidatedRequest
from banksman.model_server.json_values import Json
from banksman.model_server.openai_request import parse_chat_completion
from banksman.model_server.resolved_reply import EventStream, ResolvedReply
from banksman.model_server.responses_request import parse_response
from banksman.model_server.script import HttpError, StreamError

Parse = Callable[[Mapping[str, str], Json], ValidatedRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorFormat:
    """One wire format. The functions for errors receive the id of the request."""

    dialect: Dialect
    request_id_header: str
    parse: Parse
    """Parses headers and body; raises `RequestRefused` if they break a rule."""
    body: Callable[[ResolvedReply, ValidatedRequest], bytes]
    """Returns the body of a response that is not streamed."""
    events: Callable[[ResolvedReply, ValidatedRequest], EventStream]
    refusal: Callable[[RequestRefused, str], bytes]
    http_error: Callable[[HttpError, str], bytes]
    """Returns the body of a scripted error status."""
    stream_error: Callable[[StreamError, str], bytes]
    """Returns the event of a scripted fault within a stream."""


def _with_any_headers(parse: Callable[[Json], ValidatedRequest]) -> Parse:
    return lambda _headers, body: parse(body)


def _parse_message(headers: Mapping[str, str], body: Json) -> ValidatedRequest:
    if "anthropic-version" not in headers:
        raise RequestRefused("anthropic-version: header is required")
    return parse_message(body)


CHAT_COMPLETIONS = VendorFormat(
    dialect="openai",
    request_id_header="x-request-id",
    parse=_with_any_headers(parse_chat_completion),
    body=openai_reply.completion,
    events=openai_reply.chunks,
    refusal=openai_reply.refusal,
    http_error=openai_reply.http_error,
    stream_error=openai_reply.stream_error,
)
RESPONSES = replace(
    CHAT_COMPLETIONS,
    dialect="responses",
    parse=_with_any_headers(parse_response),
    body=responses_reply.response,
    events=responses_reply.events,
    stream_error=responses_reply.stream_error,
)
"""Refusals have the format of chat completions."""
MESSAGES = VendorFormat(
    dialect="anthropic",
    request_id_header="request-id",
    parse=_parse_message,
    body=anthropic_reply.message,
    events=anthropic_reply.events,
    refusal=anthropic_reply.refusal,
    http_error=anthropic_reply.http_error,
    stream_error=anthropic_reply.stream_error,
)
