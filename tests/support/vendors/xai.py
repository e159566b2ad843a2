"""xAI."""

from __future__ import annotations

import json
from collections.abc import Iterator

from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

from tests.support.vendors.base import Call, Json, Refusal, event
from tests.support.vendors.chat import ChatStandIn
from tests.support.vendors.gemini_openai import without_result_name
from tests.support.vendors.strict import problem


class XAI(ChatStandIn):
    """See https://docs.x.ai/docs/api-reference: the error is a text, and each chunk has a usage."""

    name = "xAI"
    vendor = "xai"
    model = "grok-4-fast-reasoning"

    def refusal(
        self, message: str, *, status: int = 400, code: object = None, param: str | None = None
    ) -> Refusal:
        return Refusal(status, {"code": "Client specified an invalid argument", "error": message})

    def overflow(self, count: int) -> Refusal:
        return self.refusal(
            f"This model's maximum prompt length is {self.context_tokens} but the request contains {count} "
            f"tokens."
        )

    def check_types(self, body: Json) -> None:
        messages = [
            {
                name: value
                for name, value in without_result_name(message).items()
                if name != "reasoning_content"
            }
            for message in body["messages"]
        ]
        if (found := problem(CompletionCreateParamsStreaming, {**body, "messages": messages})) is not None:
            raise self.refusal(
                f"Failed to deserialize the JSON body into the target type: {found[0]}: {found[1]}",
                status=422,
            )

    def check_options(self, body: Json) -> None:
        for name in ("stop", "presence_penalty", "frequency_penalty", "reasoning_effort"):
            if body.get(name) is not None:
                raise self.refusal(f"Argument not supported on this model: {name}")

    def call_deltas(self, index: int, call: Call, call_id: str) -> Iterator[Json]:
        """Each call is whole."""
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        yield {"tool_calls": [{"id": call_id, "index": index, "type": "function", "function": function}]}

    def last_chunks(self, body: Json, head: Json, reason: str, usage: Json) -> Iterator[Json]:
        """The usage so far is in several chunks."""
        half = {**usage, "completion_tokens": usage["completion_tokens"] // 2}
        yield {**head, "choices": [{"index": 0, "delta": {"content": ""}}], "usage": half}
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}
        yield {**head, "choices": [], "usage": usage}

    def stream_error(self, message: str) -> bytes:
        return event({"code": "The service is currently unavailable", "error": message})
