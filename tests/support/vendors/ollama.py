"""Ollama's endpoint in OpenAI's format, and its own description of models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

from aiohttp import web
from ollama import ShowResponse
from ollama._types import ModelDetails

from tests.support.vendors.base import Call, Features, Json, Refusal, event
from tests.support.vendors.chat import ChatStandIn


class Ollama(ChatStandIn):
    """See https://docs.ollama.com/openai: unknown fields are ignored, too long prompts are cut."""

    name = "Ollama"
    vendor = "ollama"
    model = "qwen3-vl:8b"
    reasoning_field = "reasoning"
    context_tokens = 4_096
    cuts_prompts = True
    features = Features(caching=False)

    def refusal(
        self, message: str, *, status: int = 400, code: object = None, param: str | None = None
    ) -> Refusal:
        return Refusal(
            status, {"error": {"message": message, "type": "api_error", "param": None, "code": None}}
        )

    def add_routes(self, router: web.UrlDispatcher) -> None:
        super().add_routes(router)
        router.add_post("/api/show", self._show)

    async def _show(self, _: web.Request) -> web.Response:
        found = ShowResponse(
            modified_at=datetime(2026, 1, 1, tzinfo=UTC),
            details=ModelDetails(family="qwen3vl"),
            model_info={"general.architecture": "qwen3vl", "qwen3vl.context_length": 262_144},
            capabilities=["completion", "tools", "vision", "thinking"],
        )
        return web.json_response(json.loads(found.model_dump_json(exclude_none=True, by_alias=True)))

    def check_content(self, index: int, message: Json) -> None:
        content = message.get("content")
        if not isinstance(content, str | list) and not message.get("tool_calls"):
            raise self.refusal(f"invalid message content type: {type(content).__name__}")
        for part in content if isinstance(content, list) else ():
            if part["type"] == "image_url" and not part["image_url"]["url"].startswith("data:"):
                raise self.refusal("invalid image input")

    def check_order(self, messages: list[Json]) -> None:
        """The templates of models decide; none is refused."""

    def reasoning_deltas(self, text: str) -> Iterator[Json]:
        yield from ({"content": "", **delta} for delta in super().reasoning_deltas(text) if delta)

    def call_deltas(self, index: int, call: Call, call_id: str) -> Iterator[Json]:
        """Each call is whole, and every one has the index 0."""
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        sent = {"id": call_id, "index": 0, "type": "function", "function": function}
        yield {"role": "assistant", "content": "", "tool_calls": [sent]}

    def usage(self, prompt: int, cached: int, written: int, reasoning: int) -> Json:
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}

    def stream_error(self, message: str) -> bytes:
        return event({"error": {"message": message, "type": "api_error", "param": None, "code": None}})
