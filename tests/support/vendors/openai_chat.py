"""OpenAI: Chat Completions, and the Responses API at the same address."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

from tests.support.vendors.base import Json, Refusal
from tests.support.vendors.chat import ChatStandIn
from tests.support.vendors.openai_responses import OpenAIResponses
from tests.support.vendors.schemas import openai_problem


class OpenAIChat(ChatStandIn):
    """A reasoning model of OpenAI.

    See https://platform.openai.com/docs/api-reference/chat/create and the types of the SDK.
    """

    name = "OpenAI (chat)"
    vendor = "openai"
    model = "gpt-5.4"
    request_type = CompletionCreateParamsStreaming
    reasoning_field = None

    def wrong_type(self, place: str, text: str) -> Refusal:
        if "Extra inputs" in text:
            return self.refusal(f"Unrecognized request argument supplied: {place}")
        return self.refusal(f"Invalid type for '{place}': {text}", code="invalid_type", param=place)

    def check_options(self, body: Json) -> None:
        if "max_tokens" in body:
            raise self._unsupported("max_tokens", "Use 'max_completion_tokens' instead.")
        if body.get("temperature") not in (None, 1):
            raise self.refusal(
                f"Unsupported value: 'temperature' does not support {body['temperature']} with this model. "
                f"Only "
                "the default (1) value is supported.",
                code="unsupported_value",
                param="temperature",
            )
        if body.get("tools") and body.get("reasoning_effort") not in (None, "none"):
            raise self.refusal(
                f"Function tools with reasoning_effort are not supported for {body['model']} in "
                "/v1/chat/completions. Please use /v1/responses instead.",
                param="reasoning_effort",
            )

    def _unsupported(self, name: str, hint: str) -> Refusal:
        return self.refusal(
            f"Unsupported parameter: '{name}' is not supported with this model. {hint}",
            code="unsupported_parameter",
            param=name,
        )

    def check_tool(self, index: int, function: Json) -> None:
        super().check_tool(index, function)
        if (length := len(function.get("description") or "")) > 1024:
            raise self.refusal(
                f"Invalid 'tools[{index}].function.description': string too long. Expected a string with "
                f"maximum length 1024, but got a string with length {length} instead.",
                code="string_above_max_length",
                param=f"tools[{index}].function.description",
            )

    def check_schema(self, name: str, schema: Any) -> None:
        if schema is not None and (found := openai_problem(schema)) is not None:
            raise self.refusal(
                f"Invalid schema for function '{name}': {found}",
                code="invalid_function_parameters",
                param="tools[0].function.parameters",
            )

    def reasoning_deltas(self, text: str) -> Any:
        """OpenAI keeps reasoning to itself in this format."""
        return iter(())

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Serve both APIs, which models require in turn."""
        super().add_routes(router)
        other = OpenAIResponses(self.brain)
        other.exchanges = self.exchanges
        other.add_routes(router)
