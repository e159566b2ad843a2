from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from banksman.model_server import anthropic_reply, openai_reply, responses_reply
from banksman.model_server.anthropic_request import parse_message
from banksman.model_server.chat import Dialect, ModelRequest, RequestRefused
from banksman.model_server.json_values import Json
from banksman.model_server.openai_request import parse_chat_completion
from banksman.model_server.resolved_reply import EventStream, ResolvedReply
from banksman.model_server.responses_request import parse_response
from banksman.model_server.script import HttpError, StreamError


class VendorFormat(Protocol):
    dialect: Dialect
    request_id_header: str

    def parse(self, headers: Mapping[str, str], body: Json) -> ModelRequest:
        """Parse a request; raises RequestRefused if it breaks a rule."""
        ...

    def body(self, resolved: ResolvedReply, chat: ModelRequest) -> bytes: ...

    def events(self, resolved: ResolvedReply, chat: ModelRequest) -> EventStream: ...

    def refusal(self, refused: RequestRefused, request_id: str) -> bytes: ...

    def http_error(self, fault: HttpError, request_id: str) -> bytes: ...

    def stream_error(self, fault: StreamError, request_id: str) -> bytes: ...


class ChatCompletions:
    dialect: Dialect = "openai"
    request_id_header = "x-request-id"

    def parse(self, headers: Mapping[str, str], body: Json) -> ModelRequest:
        return parse_chat_completion(body)

    def body(self, resolved: ResolvedReply, chat: ModelRequest) -> bytes:
        return openai_reply.completion(resolved, chat)

    def events(self, resolved: ResolvedReply, chat: ModelRequest) -> EventStream:
        return openai_reply.chunks(resolved, chat)

    def refusal(self, refused: RequestRefused, request_id: str) -> bytes:
        return openai_reply.error_body(
            refused.message,
            refused.status,
            error_type="invalid_request_error",
            param=refused.param,
            code=refused.code,
        )

    def http_error(self, fault: HttpError, request_id: str) -> bytes:
        return openai_reply.error_body(
            fault.message, fault.status, error_type=fault.error_type, code=fault.code
        )

    def stream_error(self, fault: StreamError, request_id: str) -> bytes:
        return openai_reply.error_event(fault.message, fault.error_type)


class Responses(ChatCompletions):
    """The format of OpenAI's responses. Refusals have the format of chat completions."""

    dialect: Dialect = "responses"

    def parse(self, headers: Mapping[str, str], body: Json) -> ModelRequest:
        return parse_response(body)

    def body(self, resolved: ResolvedReply, chat: ModelRequest) -> bytes:
        return responses_reply.response(resolved, chat)

    def events(self, resolved: ResolvedReply, chat: ModelRequest) -> EventStream:
        return responses_reply.events(resolved, chat)

    def stream_error(self, fault: StreamError, request_id: str) -> bytes:
        return responses_reply.error_event(fault.message, fault.error_type)


class AnthropicMessages:
    dialect: Dialect = "anthropic"
    request_id_header = "request-id"

    def parse(self, headers: Mapping[str, str], body: Json) -> ModelRequest:
        if "anthropic-version" not in headers:
            raise RequestRefused("anthropic-version: header is required")
        return parse_message(body)

    def body(self, resolved: ResolvedReply, chat: ModelRequest) -> bytes:
        return anthropic_reply.message(resolved, chat)

    def events(self, resolved: ResolvedReply, chat: ModelRequest) -> EventStream:
        return anthropic_reply.events(resolved, chat)

    def refusal(self, refused: RequestRefused, request_id: str) -> bytes:
        return anthropic_reply.error_body(
            refused.message,
            refused.status,
            request_id,
            error_type=refused.error_type,
            details=refused.details,
        )

    def http_error(self, fault: HttpError, request_id: str) -> bytes:
        return anthropic_reply.error_body(
            fault.message, fault.status, request_id, error_type=fault.error_type
        )

    def stream_error(self, fault: StreamError, request_id: str) -> bytes:
        return anthropic_reply.error_event(fault.message, fault.error_type, request_id)
