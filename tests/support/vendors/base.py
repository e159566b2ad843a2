"""What all stand-ins share: the server, the model behind it, and the record of requests."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from aiohttp import web

Json = dict[str, Any]

CHARS_PER_TOKEN = 4


@dataclass(frozen=True)
class Call:
    name: str
    arguments: Json


@dataclass(frozen=True)
class Turn:
    """One reply of the model, in terms of no vendor."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    thinks_between: bool = False
    """Whether the model reasons again before each further call, if its vendor supports it."""
    finish: str = ""
    """`length` or `filter` for a reply that ends early."""
    breaks_with: str = ""
    """The message of an error of the vendor after the text, inside the stream."""


@dataclass(frozen=True)
class Prompt:
    """What the model reads, in terms of no vendor."""

    system: str
    user: str
    """The text of the last message of the user, all parts together."""
    results: tuple[str, ...]
    """The results after that message, oldest first."""
    images: tuple[str, ...]
    """All images, each as Base64 or as an address."""
    tools: Mapping[str, Json]
    """The schemas of the offered tools, by name."""
    schema: Json | None
    """The schema of the reply."""
    effort: str | None
    parallel: bool
    """Whether a reply may have several calls."""
    text: str
    """The text of the whole request."""


Brain = Callable[[Prompt], Turn]


class Refusal(Exception):
    """The vendor refuses a request."""

    def __init__(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        self.status, self.body, self.headers = status, body, headers
        super().__init__(f"{status}: {json.dumps(body, ensure_ascii=False)}")


@dataclass
class Exchange:
    """One request and what happened to it."""

    path: str
    body: Json
    refusal: Refusal | None = None


@dataclass(frozen=True)
class Features:
    """What the model of a stand-in can do."""

    images: bool = True
    parallel_calls: bool = True
    reasoning: bool = True
    structured_output: bool = True
    caching: bool = True


class StandIn(ABC):
    """A server that behaves as one vendor's API does."""

    name: ClassVar[str]
    """The name in tables."""
    vendor: ClassVar[str]
    """The name of the vendor in the profiles."""
    api: ClassVar[str] = "chat"
    """The adapter that sends requests to it."""
    prefix: ClassVar[str] = "/v1"
    """The path of the base URL."""
    model: ClassVar[str]
    features: ClassVar[Features] = Features()
    filters: ClassVar[bool] = True
    """Whether the vendor reports that a filter ended a reply."""
    context_tokens: ClassVar[int] = 40_000
    """A small context, so that overflows are cheap to cause."""
    cuts_prompts: ClassVar[bool] = False
    """Whether the server removes the beginning of a too long prompt without an error."""

    def __init__(self, brain: Brain) -> None:
        self.brain = brain
        self.exchanges: list[Exchange] = []
        self.url = ""
        self._prefixes: set[str] = set()
        self._count = 0

    @classmethod
    def entry(cls, url: str) -> dict[str, str]:
        """Return the entry of the setting `models.providers` for a server at `url`."""
        return {"api": cls.api, "base_url": f"{url}{cls.prefix}", "api_key": "key", "vendor": cls.vendor}

    @property
    def refusals(self) -> list[Refusal]:
        return [one.refusal for one in self.exchanges if one.refusal is not None]

    @property
    def bodies(self) -> list[Json]:
        """The bodies of the accepted requests."""
        return [one.body for one in self.exchanges if one.refusal is None]

    @classmethod
    @asynccontextmanager
    async def running(cls, brain: Brain, port: int = 0) -> AsyncGenerator[Self]:
        """Serve until the context ends; port 0 is a free one."""
        server = cls(brain)
        app = web.Application(client_max_size=64 * 1024 * 1024)
        server.add_routes(app.router)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield server
        finally:
            await runner.cleanup()

    @abstractmethod
    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Add the routes of the API, whose handlers use `serve`."""

    @abstractmethod
    def check(self, body: Json) -> None:
        """Raise `Refusal` if the vendor refuses the request."""

    @abstractmethod
    def read(self, body: Json) -> Prompt:
        """Return what the model reads of an accepted request."""

    @abstractmethod
    def stream(self, body: Json, turn: Turn) -> AsyncIterator[bytes]:
        """Yield the bytes of a reply."""

    content_type: ClassVar[str] = "text/event-stream"

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        exchange = Exchange(request.path, body)
        self.exchanges.append(exchange)
        try:
            self.check(body)
            turn = self.brain(self.read(body))
        except Refusal as refusal:
            exchange.refusal = refusal
            return web.json_response(refusal.body, status=refusal.status, headers=refusal.headers)
        response = web.StreamResponse(headers={"Content-Type": self.content_type})
        await response.prepare(request)
        async for piece in self.stream(body, turn):
            await response.write(piece)
        return response

    def new_id(self, prefix: str, chars: int = 24) -> str:
        self._count += 1
        digest = hashlib.sha256(f"{self.name} {self._count}".encode()).hexdigest()
        return prefix + digest[:chars]

    def cached_tokens(self, prefix: str) -> int:
        """Return the tokens of the longest stored beginning of a prompt, and store the prompt."""
        stored = max((_common(prefix, one) for one in self._prefixes), default=0)
        self._prefixes.add(prefix)
        return stored // CHARS_PER_TOKEN // 64 * 64


def signature(*signed: Any) -> str:
    """Return a signature that only this process writes."""
    digest = hashlib.sha256(json.dumps(["a secret of the vendor", *signed]).encode()).digest()
    return base64.b64encode(digest).decode()


_FILES = re.compile(r"[A-Za-z0-9+/]{1000,}={0,2}")


def prompt_tokens(messages: Any) -> int:
    """Return the tokens of messages without the base64 of their files, which vendors count otherwise."""
    return tokens(_FILES.sub("", json.dumps(messages)))


def tokens(text: str) -> int:
    return max(1, len(text) // CHARS_PER_TOKEN)


def event(data: Any, name: str = "") -> bytes:
    """Return a server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def pieces(text: str, chars: int = 12) -> list[str]:
    return [text[start : start + chars] for start in range(0, len(text), chars)]


def _common(one: str, other: str) -> int:
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(index for index in range(length) if one[index] != other[index])
