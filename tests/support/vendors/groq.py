"""Groq."""

from __future__ import annotations

from collections.abc import Iterator

from groq.types.chat.completion_create_params import CompletionCreateParams

from tests.support.vendors.base import Features, Json, Refusal, event
from tests.support.vendors.chat import ChatStandIn
from tests.support.vendors.gemini_openai import without_result_name
from tests.support.vendors.strict import problem


class Groq(ChatStandIn):
    """See https://console.groq.com/docs/api-reference and the types of the package `groq`."""

    name = "Groq"
    vendor = "groq"
    prefix = "/openai/v1"
    model = "openai/gpt-oss-120b"
    reasoning_field = "reasoning"
    features = Features(images=False)

    def check_types(self, body: Json) -> None:
        body = {name: value for name, value in body.items() if name != "stream_options"}
        messages = [without_result_name(message) for message in body["messages"]]
        if (found := problem(CompletionCreateParams, {**body, "messages": messages})) is not None:
            raise self._wrong(*found, messages)

    def _wrong(self, place: str, text: str, messages: list[Json]) -> Refusal:
        steps = place.split(".")
        if steps[0] == "messages" and "Extra" in text:
            at, name = f"messages.{steps[1]}", steps[-1]
            role = messages[int(steps[1])]["role"]
            fault = f"('{at}' : property '{name}' is unsupported)"
            text = f"'{at}' : for 'role:{role}' the following must be satisfied[{fault}]"
            return self.refusal(text)
        return self.refusal(f"property '{place}' is unsupported: {text}")

    def check_options(self, body: Json) -> None:
        if body.get("tools") and (body.get("response_format") or {}).get("type") == "json_schema":
            raise self.refusal("response_format `json_schema` cannot be combined with tool/function calling")

    def overflow(self, count: int) -> Refusal:
        return self.refusal(
            "Please reduce the length of the messages or completion.",
            code="context_length_exceeded",
            param="messages",
        )

    def blind(self) -> Refusal:
        return self.refusal("messages[1].content must be a string")

    def last_chunks(self, body: Json, head: Json, reason: str, usage: Json) -> Iterator[Json]:
        """The usage is in a field of Groq, and also in OpenAI's place if it is requested."""
        choice = {"index": 0, "delta": {}, "finish_reason": reason}
        yield {**head, "choices": [choice], "x_groq": {"id": "req_1", "usage": usage}}
        if (body.get("stream_options") or {}).get("include_usage"):
            yield {**head, "choices": [], "usage": usage}

    def stream_error(self, message: str) -> bytes:
        return event({"error": {"message": message, "type": "server_error", "status_code": 503}}, "error")
