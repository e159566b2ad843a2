"""What a model server states about its models: the context size, and whether they see images."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from banksman.agent.providers.untyped import as_list, as_object, as_text
from banksman.contracts.wire import JsonObject, JsonValue

FACTS_S = 300.0
"""Seconds for which the facts of a model are kept; also those of a server that told none."""
MAX_MODELS = 200
"""Maximum models of one server whose facts are kept: tenants choose the names."""

FactSource = Literal["none", "models", "llama.cpp", "ollama"]
"""
none       the server is not asked
models     the list of models: vLLM's `max_model_len`, `context_length` and modalities of OpenRouter
llama.cpp  `/props`
ollama     `/api/show` and `/api/ps`
"""

_CONTEXT_FIELDS = ("max_model_len", "context_length", "context_window", "max_context_length")
_NUM_CTX = re.compile(r"^num_ctx\s+(\d{1,9})\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Facts:
    context_tokens: int | None = None
    """Tokens that one request may have; None if unknown."""
    images: bool | None = None
    """Whether the model sees images; None if unknown."""


Fetch = Callable[[str, JsonObject | None], Awaitable[JsonValue]]
"""Requests a URL of the server, with POST if there is a body; returns None for every error."""


class ServerFacts:
    """Asks one server in the background, so that no request waits for it."""

    def __init__(self, base_url: str, fetch: Fetch) -> None:
        self._base = base_url.rstrip("/")
        self._root = self._base.removesuffix("/v1")
        self._fetch = fetch
        self._known: dict[str, tuple[float, Facts]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def known(self, model: str, source: FactSource) -> Facts:
        """Return what is known so far, and ask again if that is too old."""
        until, facts = self._known.get(model, (0.0, Facts()))
        if source != "none" and until < time.monotonic() and model not in self._asking:
            self._asking[model] = asyncio.create_task(self._ask(model, source))
        return facts

    async def close(self) -> None:
        tasks = tuple(self._asking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _ask(self, model: str, source: FactSource) -> None:
        try:
            facts = await self._asked(model, source)
            self._known[model] = (time.monotonic() + FACTS_S, facts)
            if len(self._known) > MAX_MODELS:
                del self._known[next(iter(self._known))]
        finally:
            del self._asking[model]

    async def _asked(self, model: str, source: FactSource) -> Facts:
        match source:
            case "llama.cpp":
                props = as_object(await self._fetch(f"{self._root}/props", None))
                size = as_object(props.get("default_generation_settings")).get("n_ctx")
                return Facts(_size(size), _flag(as_object(props.get("modalities")).get("vision")))
            case "ollama":
                return await self._of_ollama(model)
            case _:
                reply = await self._fetch(f"{self._base}/models", None)
                listed = as_list(reply) or as_list(as_object(reply).get("data"))
                one = as_object(next((one for one in listed if as_object(one).get("id") == model), None))
                size = next((size for name in _CONTEXT_FIELDS if (size := _size(one.get(name)))), None)
                modalities = as_list(as_object(one.get("architecture")).get("input_modalities"))
                return Facts(size, "image" in modalities if modalities else None)

    async def _of_ollama(self, model: str) -> Facts:
        """A loaded model has the size with which it was loaded; what it could have does not count."""
        shown = as_object(await self._fetch(f"{self._root}/api/show", {"model": model}))
        loaded = as_list(as_object(await self._fetch(f"{self._root}/api/ps", None)).get("models"))
        names = (model, f"{model}:latest")
        sizes = [
            _size(one.get("context_length")) for one in map(as_object, loaded) if one.get("model") in names
        ]
        setting = _NUM_CTX.search(as_text(shown.get("parameters")))
        size = next(filter(None, sizes), None) or (_size(int(setting[1])) if setting else None)
        capabilities = as_list(shown.get("capabilities"))
        return Facts(size, "vision" in capabilities if capabilities else None)


def _size(value: object) -> int | None:
    return value if isinstance(value, int) and 1_000 <= value <= 100_000_000 else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
