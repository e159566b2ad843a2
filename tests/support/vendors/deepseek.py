"""DeepSeek."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from tests.support.vendors.base import Features, Json, Refusal, Turn
from tests.support.vendors.chat import ChatStandIn


class DeepSeek(ChatStandIn):
    """DeepSeek's reasoning model, which calls tools while it thinks.

    See https://api-docs.deepseek.com/guides/thinking_mode: inside a turn the reasoning must go back.
    """

    name = "DeepSeek"
    vendor = "deepseek"
    prefix = ""
    model = "deepseek-reasoner"
    content_lists = False
    roles = frozenset({"system", "user", "assistant", "tool"})
    features = Features(images=False, structured_output=False)

    def refusal(
        self,
        message: str,
        *,
        status: int = 400,
        code: object = "invalid_request_error",
        param: str | None = None,
    ) -> Refusal:
        error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
        return Refusal(status, {"error": error})

    def overflow(self, count: int) -> Refusal:
        return self.refusal(
            f"This model's maximum context length is {self.context_tokens} tokens. However, you requested "
            f"{count} "
            f"tokens ({count} in the messages, 0 in the completion). Please reduce the length of the "
            f"messages or "
            "completion."
        )

    def wrong_role(self, index: int, role: str) -> Refusal:
        return self.refusal(
            f"Failed to deserialize the JSON body into the target type: messages[{index}].role: unknown "
            f"variant "
            f"`{role}`, expected one of `system`, `user`, `assistant`, `tool`",
            status=422,
        )

    def check_options(self, body: Json) -> None:
        if (body.get("response_format") or {}).get("type") == "json_schema":
            raise self.refusal("This response_format type is unavailable now")

    def check_order(self, messages: list[Json]) -> None:
        super().check_order(messages)
        turn = max((i for i, one in enumerate(messages) if one["role"] == "user"), default=0)
        for index, message in enumerate(messages):
            if index > turn and message.get("tool_calls") and not message.get("reasoning_content"):
                raise self.refusal(
                    f"Missing `reasoning_content` field in the assistant message at message index {index}."
                )

    def stream(self, body: Json, turn: Turn) -> AsyncIterator[bytes]:
        """It always thinks before it calls a tool."""
        thinks = turn.calls and not turn.reasoning
        return super().stream(body, replace(turn, reasoning="Let me see.") if thinks else turn)

    def usage(self, prompt: int, cached: int, written: int, reasoning: int) -> Json:
        return {
            **super().usage(prompt, cached, written, reasoning),
            "prompt_cache_hit_tokens": cached,
            "prompt_cache_miss_tokens": prompt - cached,
        }

    def last_chunks(self, body: Json, head: Json, reason: str, usage: Json) -> Iterator[Json]:
        yield {
            **head,
            "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": reason}],
            "usage": usage,
        }
