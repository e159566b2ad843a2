"""Google's endpoint in OpenAI's format, in front of Gemini 3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

from tests.support.vendors.base import Call, Json, Refusal, event, signature
from tests.support.vendors.chat import ChatStandIn
from tests.support.vendors.schemas import gemini_problem
from tests.support.vendors.strict import problem

UNKNOWN_SIGNATURES = frozenset({"skip_thought_signature_validator", "context_engineering_is_the_way_to_go"})
"""Values that Google accepts for calls that another model wrote: https://ai.google.dev/gemini-api/docs/thought-signatures"""


class GeminiOpenAI(ChatStandIn):
    """See https://ai.google.dev/gemini-api/docs/openai: errors are arrays, all calls have the index 0."""

    name = "Gemini (OpenAI endpoint)"
    vendor = "gemini"
    prefix = "/v1beta/openai"
    model = "gemini-3-pro-preview"
    tool_name = r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}"
    max_tools = 512
    empty_content = False
    roles = frozenset({"system", "developer", "user", "assistant", "tool"})
    finish_reasons = {"length": "length", "filter": "content_filter: SAFETY", "calls": "stop"}  # noqa: RUF012

    def refusal(
        self, message: str, *, status: int = 400, code: Any = None, param: str | None = None
    ) -> Refusal:
        error = {"code": status, "message": message, "status": "INVALID_ARGUMENT"}
        return Refusal(status, [{"error": error}])

    def overflow(self, count: int) -> Refusal:
        return self.refusal(
            f"The input token count ({count}) exceeds the maximum number of tokens allowed "
            f"({self.context_tokens})."
        )

    def check_types(self, body: Json) -> None:
        if (found := problem(CompletionCreateParamsStreaming, _without_extras(body))) is not None:
            place, text = found
            name = place.rpartition(".")[2]
            raise self.refusal(
                f"Invalid JSON payload received. Unknown name \"{name}\" at '{place}': Cannot find field."
                if "Extra" in text
                else f"Invalid value at '{place}': {text}"
            )

    def check_tool(self, index: int, function: Json) -> None:
        super().check_tool(index, function)
        schema = function.get("parameters")
        place = f"tools[0].function_declarations[{index}].parameters"
        if schema is not None and (found := gemini_problem(schema, place)) is not None:
            raise self.refusal(found)

    def check_order(self, messages: list[Json]) -> None:
        super().check_order(messages)
        turn = max((i for i, one in enumerate(messages) if one["role"] == "user"), default=0)
        for index, message in enumerate(messages):
            if message["role"] == "tool" and not message.get("name"):
                raise self.refusal(
                    f"* GenerateContentRequest.contents[{index}].parts[0].function_response.name: Name "
                    f"cannot be empty."
                )
            for position, call in enumerate(message.get("tool_calls") or ()):
                self._check_signature(call, needed=index > turn and position == 0, position=index)

    def _check_signature(self, call: Json, *, needed: bool, position: int) -> None:
        found = call.get("extra_content", {}).get("google", {}).get("thought_signature")
        function = call["function"]
        if found is None and needed:
            raise self.refusal(
                "Function call is missing a thought_signature in functionCall parts. This is required for "
                "tools "
                "to work correctly, and missing thought_signature may lead to degraded model performance. "
                f"Additional data, function call `default_api:{function['name']}` , position {position}."
            )
        expected = signature(function["name"], json.loads(function["arguments"]))
        if found is not None and found not in UNKNOWN_SIGNATURES and found != expected:
            raise self.refusal("Corrupted thought signature.")

    def reasoning_deltas(self, text: str) -> Iterator[Json]:
        """Thoughts are not part of this format; only their signatures are."""
        return iter(())

    def call_deltas(self, index: int, call: Call, call_id: str) -> Iterator[Json]:
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        sent: Json = {"index": 0, "id": call_id, "type": "function", "function": function}
        if index == 0:
            sent["extra_content"] = {"google": {"thought_signature": signature(call.name, call.arguments)}}
        yield {"role": "assistant", "tool_calls": [sent]}

    def new_call_id(self, body: Json, index: int) -> str:
        return self.new_id("function-call-", 18)

    def usage(self, prompt: int, cached: int, written: int, reasoning: int) -> Json:
        # The total includes thoughts, which `completion_tokens` does not.
        counts = {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written + 30,
        }
        return {**counts, "prompt_tokens_details": {"cached_tokens": cached}} if cached else counts

    def last_chunks(self, body: Json, head: Json, reason: str, usage: Json) -> Iterator[Json]:
        """The usage is in the chunk with the finish reason."""
        choice = {"index": 0, "delta": {"role": "assistant"}, "finish_reason": reason}
        yield {**head, "choices": [choice], "usage": usage}

    def stream_error(self, message: str) -> bytes:
        return event([{"error": {"code": 503, "message": message, "status": "UNAVAILABLE"}}])


def _without_extras(body: Json) -> Json:
    """Return the body without `extra_content` of calls and names of results, which OpenAI's types lack."""
    messages = [
        {
            **message,
            "tool_calls": [
                {name: value for name, value in call.items() if name != "extra_content"}
                for call in message["tool_calls"]
            ],
        }
        if message.get("tool_calls")
        else message
        for message in body["messages"]
    ]
    return {**body, "messages": [without_result_name(message) for message in messages]}


def without_result_name(message: Json) -> Json:
    if message["role"] != "tool":
        return message
    return {name: value for name, value in message.items() if name != "name"}
