"""Mistral's chat API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mistralai.client.models.chatcompletionstreamrequest import ChatCompletionStreamRequest
from pydantic import ValidationError

from tests.support.vendors.base import Call, Features, Json, Refusal, event, pieces
from tests.support.vendors.chat import ChatStandIn
from tests.support.vendors.strict import unknown_field

_NEXT_ROLES = {
    None: {"system", "user", "assistant"},
    "system": {"system", "user", "assistant"},
    "user": {"user", "assistant", "system"},
    "assistant": {"user", "tool", "system"},
    "tool": {"tool", "assistant"},
}
"""The roles that may follow a role."""


class Mistral(ChatStandIn):
    """See https://docs.mistral.ai/api/endpoint/chat and the models of the package `mistralai`."""

    name = "Mistral"
    vendor = "mistral"
    model = "magistral-medium-latest"
    call_id = r"[a-zA-Z0-9]{9}"
    roles = frozenset({"system", "user", "assistant", "tool"})
    finish_reasons = {"length": "length", "filter": "error", "calls": "tool_calls"}  # noqa: RUF012
    filters = False
    features = Features(caching=False)

    def refusal(
        self,
        message: Any,
        *,
        status: int = 400,
        code: Any = "3000",
        param: str | None = None,
        type: str = "invalid_request_error",
    ) -> Refusal:
        return Refusal(
            status, {"object": "error", "message": message, "type": type, "param": param, "code": code}
        )

    def overflow(self, count: int) -> Refusal:
        return self.refusal(
            f"Prompt contains {count} tokens and 0 draft tokens, too large for model with "
            f"{self.context_tokens} "
            "maximum context length",
            code="3051",
        )

    def check_types(self, body: Json) -> None:
        try:
            extra = unknown_field(ChatCompletionStreamRequest, body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise self._invalid(first["type"], list(first["loc"]), first["msg"]) from error
        if extra is not None:
            raise self._invalid("extra_forbidden", extra.split("."), "Extra inputs are not permitted")

    def _invalid(self, kind: str, place: list[Any], text: str) -> Refusal:
        detail = [{"type": kind, "loc": ["body", *place], "msg": text}]
        return self.refusal({"detail": detail}, status=422, type="invalid_request_error", code=None)

    def wrong_id(self, index: int, call_id: str) -> Refusal:
        return self.refusal(
            f"Tool call id was {call_id} but must be a-z, A-Z, 0-9, with a length of 9.",
            type="invalid_function_call",
            code="3280",
        )

    def check_order(self, messages: list[Json]) -> None:
        last: str | None = None
        for message in messages:
            role = message["role"]
            if role not in _NEXT_ROLES[last] or (role == "tool" and last is None):
                raise self.refusal(
                    f"Unexpected role '{role}' after role '{last}'",
                    type="invalid_request_message_order",
                    code="3230",
                )
            last = role
        if last not in ("user", "tool"):
            raise self.refusal(
                f"Expected last role User or Tool (or Assistant with prefix True) for serving but got {last}",
                type="invalid_request_message_order",
                code="3230",
            )
        super().check_order(messages)

    def unanswered(self, ids: list[str]) -> Refusal:
        return self.refusal(
            "Not the same number of function calls and responses",
            type="invalid_request_message_order",
            code="3230",
        )

    def first_delta(self) -> Json:
        return {"role": "assistant", "content": ""}

    def reasoning_deltas(self, text: str) -> Iterator[Json]:
        """Reasoning is a part of the content, which is a list then."""
        for piece in pieces(text):
            yield {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": piece}]}]}

    def call_deltas(self, index: int, call: Call, call_id: str) -> Iterator[Json]:
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        yield {"content": "", "tool_calls": [{"id": call_id, "function": function, "index": index}]}

    def new_call_id(self, body: Json, index: int) -> str:
        return self.new_id("", 9)

    def usage(self, prompt: int, cached: int, written: int, reasoning: int) -> Json:
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}

    def last_chunks(self, body: Json, head: Json, reason: str, usage: Json) -> Iterator[Json]:
        yield {
            **head,
            "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": reason}],
            "usage": usage,
        }

    def stream_error(self, message: str) -> bytes:
        return event({"object": "error", "message": message, "type": "internal_server_error", "code": "1000"})
