"""The server of llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiohttp import web

from tests.support.vendors.base import Features, Json, Refusal, event
from tests.support.vendors.chat import ChatStandIn
from tests.support.vendors.schemas import subschemas


class LlamaCpp(ChatStandIn):
    """See https://github.com/ggml-org/llama.cpp/tree/master/tools/server: schemas become a grammar."""

    name = "llama.cpp"
    vendor = "llama.cpp"
    model = "qwen3-8b.gguf"
    reasoning_field = None
    features = Features(images=False)
    context_tokens = 8_192

    def refusal(
        self, message: str, *, status: int = 400, code: object = None, param: str | None = None
    ) -> Refusal:
        return Refusal(
            status, {"error": {"code": status, "message": message, "type": "invalid_request_error"}}
        )

    def overflow(self, count: int) -> Refusal:
        error = {
            "code": 400,
            "message": "the request exceeds the available context size, try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": count,
            "n_ctx": self.context_tokens,
        }
        return Refusal(400, {"error": error})

    def add_routes(self, router: web.UrlDispatcher) -> None:
        super().add_routes(router)
        router.add_get("/props", self._props)

    async def _props(self, _: web.Request) -> web.Response:
        settings = {"n_ctx": self.context_tokens}
        modalities = {"vision": False, "audio": False}
        return web.json_response({"default_generation_settings": settings, "modalities": modalities})

    def check_content(self, index: int, message: Json) -> None:
        if message["role"] == "assistant" and "content" not in message and not message.get("tool_calls"):
            raise self.refusal("Expected 'content' or 'tool_calls' in message")
        super().check_content(index, message)

    def blind(self) -> Refusal:
        return self.refusal(
            "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
            status=500,
        )

    def check_schema(self, name: str, schema: Any) -> None:
        definitions = (schema or {}).get("$defs", {})
        for path, inner in subschemas(schema or {}):
            if not isinstance(inner, dict):
                continue
            pattern, reference = inner.get("pattern"), inner.get("$ref")
            if pattern is not None and not (pattern.startswith("^") and pattern.endswith("$")):
                raise self._no_grammar("Pattern must start with '^' and end with '$'")
            if reference is not None and reference.removeprefix("#/$defs/") not in definitions:
                raise self._no_grammar(
                    f"Error resolving ref {reference}: {'.'.join(path)} not in {definitions}"
                )

    def _no_grammar(self, reason: str) -> Refusal:
        return self.refusal(f"JSON schema conversion failed:\n{reason}")

    def first_delta(self) -> Json:
        return {"role": "assistant", "content": None}

    def new_call_id(self, body: Json, index: int) -> str:
        return self.new_id("", 32)

    def last_chunks(self, body: Json, head: Json, reason: str, usage: Json) -> Iterator[Json]:
        timings = {
            "prompt_n": usage["prompt_tokens"],
            "predicted_n": usage["completion_tokens"],
            "cache_n": 0,
        }
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
        yield {**head, "choices": [], "usage": usage, "timings": timings}

    def stream_error(self, message: str) -> bytes:
        return event({"error": {"code": 500, "message": message, "type": "server_error"}})
