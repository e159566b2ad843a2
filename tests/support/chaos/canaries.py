"""Secrets that every process of a fleet receives, and the search for them in all other places."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import secrets
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from hashlib import sha256
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from zstandard import ZstdDecompressor, ZstdError

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call
from banksman.bus.messages import StoredMessage
from banksman.bus.names import api
from tests.support.model_server import ModelServer

_ZSTD = b"\x28\xb5\x2f\xfd"
_PACKED_STATE = re.compile(rb'"state":"([A-Za-z0-9+/=]{40,})"')
"""A snapshot of a log: base64 of data that zlib compressed."""


class Canaries:
    """One secret of each kind. No output or stored data of the system may contain any of them."""

    def __init__(self) -> None:
        mark = secrets.token_hex(12)
        self.client_key = f"canary-client-{mark}"
        """The key that users send to the gateway."""
        self.secrets = {
            "OpenAI key": f"sk-canary-openai-{mark}",
            "Anthropic key": f"sk-ant-canary-{mark}",
            "Backboard key": f"canary-backboard-{mark}",
            "key of an upstream": f"canary-upstream-{mark}",
            "password of a proxy": f"canary-proxy-{mark}",
            "client's key": self.client_key,
        }
        """By the kind of secret."""

    def environment(self, model_url: str, host: str) -> dict[str, str]:
        """Return the settings of a fleet.

        Args:
            model_url: The model server, reached without the proxy, which does not exist.
            host: The address on which the fleet's processes listen.
        """
        password = self.secrets["password of a proxy"]
        proxy = f"http://someone:{password}@127.0.0.1:9"
        digest = sha256(self.client_key.encode()).hexdigest()
        # The traffic creates assistants with approval policies of their own.
        rights = ["chat", "approve", "admin"]
        key = {"sha256": digest, "tenant": "local", "user": "local", "rights": rights}
        upstream = {
            "name": "vendor",
            "base_url": f"{model_url}/v1",
            "api_key": self.secrets["key of an upstream"],
            "dialects": ["openai", "responses"],
        }
        return {
            "BANKSMAN_MODELS__OPENAI_API_KEY": self.secrets["OpenAI key"],
            "BANKSMAN_MODELS__ANTHROPIC_API_KEY": self.secrets["Anthropic key"],
            "BANKSMAN_MODELS__BACKBOARD_API_KEY": self.secrets["Backboard key"],
            "BANKSMAN_GATEWAY__KEYS": json.dumps([key]),
            "BANKSMAN_GATEWAY__UPSTREAMS": json.dumps([upstream]),
            "HTTP_PROXY": proxy,
            "HTTPS_PROXY": proxy,
            "NO_PROXY": ",".join({"127.0.0.1", "localhost", host, str(urlsplit(model_url).hostname)}),
        }

    @property
    def headers(self) -> dict[str, str]:
        """The headers that identify the users."""
        return {"Authorization": f"Bearer {self.client_key}"}

    def with_files(self, keys: Path) -> dict[str, str]:
        """Return all secrets, including the contents of a key directory: seeds and the signing key."""
        files = {
            f"content of {file.name}": file.read_text(encoding="ascii").strip() for file in keys.iterdir()
        }
        return {**self.secrets, **files}


class Search:
    """Searches bytes for secrets: verbatim, in base64, and in compressed data."""

    def __init__(self, wanted: Mapping[str, str]) -> None:
        self._needles = {name: tuple(_forms(secret.encode())) for name, secret in wanted.items()}

    def names_in(self, data: bytes) -> set[str]:
        """Return the names of the secrets in these bytes."""
        layers = tuple(_layers(data))
        return {
            name
            for name, forms in self._needles.items()
            if any(form in layer for layer in layers for form in forms)
        }

    def files(self, *places: Path) -> Iterator[str]:
        """Yield a sentence for each secret in each file, including subdirectories; links are not followed."""
        for file in _files(places):
            for name in sorted(self.names_in(_read(file))):
                yield f"the {name} is in {file}"

    async def streams(self, bus: Bus) -> AsyncIterator[str]:
        """Yield a sentence for each secret in each message of every stream of an account, buckets and
        object stores included.

        Raises:
            Unavailable: No server responds.
        """
        for stream in await streams(bus):
            messages = [message async for message in _messages(bus, stream)]
            for subject, data in _pieces(messages):
                for name in sorted(self.names_in(data)):
                    yield f"the {name} is in stream {stream['config']['name']}, {subject}"

    def requests(self, model: ModelServer) -> Iterator[str]:
        """Yield a sentence for each secret in the requests to a model, except the model's own key."""
        for request in model.requests():
            for name in sorted(self.names_in(request.raw)):
                yield f"the {name} is in model request {request.number}"


async def found_in_files(search: Search, *places: Path) -> list[str]:
    """Like `Search.files`, without blocking the event loop."""
    return await asyncio.to_thread(lambda: list(search.files(*places)))


def _forms(secret: bytes) -> Iterator[bytes]:
    """Yield a secret verbatim, and its base64 forms at each of the three possible offsets."""
    yield secret
    for offset in range(3):
        text = base64.b64encode(bytes(offset) + secret)
        yield text[(offset * 8 + 5) // 6 : (offset + len(secret)) * 8 // 6]


def _layers(data: bytes) -> Iterator[bytes]:
    yield data
    if data.startswith(_ZSTD):
        yield _unpacked(data)
    for match in _PACKED_STATE.finditer(data):
        try:
            yield zlib.decompress(base64.b64decode(match[1]))
        except (ValueError, zlib.error):
            continue


def _unpacked(data: bytes) -> bytes:
    """Return the zstd data that can be decompressed; an object may contain only one part of an archive."""
    out = bytearray()
    try:
        with ZstdDecompressor().stream_reader(BytesIO(data)) as reader:
            while piece := reader.read(1 << 20):
                out += piece
    except ZstdError:
        pass
    return bytes(out)


def _files(places: Iterable[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_file():
            yield place
        else:
            # A workspace may be removed during the search; unlike `Path.rglob`, this continues.
            for directory, _, names in os.walk(place):
                yield from (Path(directory, name) for name in names)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes() if file.is_file() and not file.is_symlink() else b""
    except OSError:
        return b""


async def streams(bus: Bus) -> list[dict[str, Any]]:
    """Return the server's description of every stream, bucket and object store of an account.

    Raises:
        Unavailable: No server responds.
    """
    found: list[dict[str, Any]] = []
    while True:
        response = await call(bus, api("STREAM.LIST"), {"offset": len(found)})
        found += response["streams"]
        if len(found) >= response["total"]:
            return found


async def _messages(bus: Bus, stream: Mapping[str, Any]) -> AsyncIterator[StoredMessage]:
    name = str(stream["config"]["name"])
    if stream["config"].get("allow_direct"):
        async for message in jetstream.read(bus, name, ">"):
            yield message
        return
    after = 0
    while (message := await jetstream.next_message(bus, name, ">", after=after)) is not None:
        yield message
        after = message.stream_seq


def _pieces(messages: Iterable[StoredMessage]) -> Iterator[tuple[str, bytes]]:
    """Yield messages with their headers; the chunks of an object are joined."""
    for message in messages:
        head = "".join(f"{name}: {value}\n" for name, value in message.headers.items())
        yield message.subject, head.encode() + message.data
    ordered = sorted(messages, key=lambda one: (one.subject, one.stream_seq))
    for subject, chunks in groupby(ordered, key=lambda one: one.subject):
        if subject.startswith("$O."):
            yield subject, b"".join(chunk.data for chunk in chunks)
