"""vLLM's server."""

from __future__ import annotations

from aiohttp import web

from tests.support.vendors.base import Features, Json, Refusal, event
from tests.support.vendors.chat import ChatStandIn


class VLLM(ChatStandIn):
    """It ignores unknown fields.

    See https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html.
    """

    name = "vLLM"
    vendor = "vllm"
    model = "Qwen/Qwen3-32B"
    features = Features(images=False)
    context_tokens = 20_000

    def refusal(
        self, message: str, *, status: int = 400, code: object = None, param: str | None = None
    ) -> Refusal:
        error = {"message": message, "type": "BadRequestError", "param": param, "code": status}
        return Refusal(status, {"error": error})

    def overflow(self, count: int) -> Refusal:
        return self.refusal(
            f"This model's maximum context length is {self.context_tokens} tokens. However, your request "
            f"has {count} "
            "input tokens. Please reduce the length of the input messages. None"
        )

    def add_routes(self, router: web.UrlDispatcher) -> None:
        super().add_routes(router)
        router.add_get(f"{self.prefix}/models", self._models)

    async def _models(self, _: web.Request) -> web.Response:
        one = {"id": self.model, "object": "model", "owned_by": "vllm", "max_model_len": self.context_tokens}
        return web.json_response({"object": "list", "data": [one]})

    def check_options(self, body: Json) -> None:
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or 0
        if limit > self.context_tokens:
            raise self.refusal(
                f"'max_tokens' or 'max_completion_tokens' is too large: {limit}. This model's maximum "
                f"context "
                f"length is {self.context_tokens} tokens and your request has 20 input tokens."
            )

    def blind(self) -> Refusal:
        return self.refusal(f"{self.model} is not a multimodal model")

    def check_order(self, messages: list[Json]) -> None:
        """The chat template refuses what it cannot write."""
        for index, message in enumerate(messages):
            if message["role"] == "system" and index > 0:
                raise self.refusal("System message must be at the beginning.")
        super().check_order(messages)

    def new_call_id(self, body: Json, index: int) -> str:
        return self.new_id("chatcmpl-tool-", 32)

    def stream_error(self, message: str) -> bytes:
        return event({"object": "error", "message": message, "type": "InternalServerError", "code": 500})
