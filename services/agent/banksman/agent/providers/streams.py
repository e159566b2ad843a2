"""Bounds what the stream of one model server costs the process that reads all.

A server may send what it wants as fast as it can. What it compressed is refused before it is unpacked.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterable, Generator, Mapping
from contextlib import suppress
from typing import Any, cast

from banksman.agent.providers.faults import TransientFault, shown_reason
from banksman.contracts.errors import ProviderFailed
from banksman.contracts.json_text import MAX_VALUES, has_more_values

IDENTITY = "identity"
"""The only content coding that requests accept."""
MAX_STREAM_BYTES = 64 * 1024 * 1024
"""Maximum bytes of a reply. Servers send up to 300 for each token."""
MAX_EVENT_BYTES = 4 * 1024 * 1024
"""Maximum size of an event, which is held in memory until it is complete; a longer event ends its stream."""
MAX_ERROR_BYTES = 64 * 1024
"""Maximum bytes to read of the body of a refusal."""
REFUSAL_S = 5.0
"""Seconds for which the body of a refusal is read; what arrived until then counts."""
END_FIELD = "[DONE]"
"""The only field of the object that stands for the event which ends a stream of the OpenAI format."""
_PIECE_BYTES = 4096
_BOM = b"\xef\xbb\xbf"
_SHOWN_BYTES = 1024
"""Bytes of a reply without events that its error contains."""
_DECODER = json.JSONDecoder(strict=False)
"""Accepts control characters in strings, as a server writes that divides data at each line end."""
_WORK_S, _MAX_REST_S = 0.005, 0.1
_RESTS = 2
"""Seconds of rest for each second of work: one reply never takes more than a third of the time."""


def check_head(provider: str, status: int, headers: Mapping[str, str]) -> None:
    """Raise `ProviderFailed` for a redirect and for a compressed body."""
    coding = headers.get("content-encoding", "").strip().lower()
    if 300 <= status < 400:
        text = f"the model's server redirects ({status}), which is not followed: it would get prompt and key"
        raise ProviderFailed(provider, text, status=status, unavailable=True)
    if coding not in ("", IDENTITY):
        text = f"the model's server compresses its reply ({coding[:40]!r}), which no request accepts"
        raise ProviderFailed(provider, text, status=status, unavailable=True)


def check_size(provider: str, size: int, most: int = MAX_STREAM_BYTES) -> None:
    """Raise `ProviderFailed` for a body of more than `most` bytes."""
    if size > most:
        text = f"the model's server sent more than {most} bytes"
        raise ProviderFailed(provider, text, unavailable=True)


async def bounded(
    provider: str, pieces: AsyncIterable[bytes], most: int = MAX_STREAM_BYTES
) -> AsyncGenerator[bytes]:
    """Yield a body in small pieces, and pause while its reader takes more than its part of the time.

    Raises:
        ProviderFailed: The body has more than `most` bytes.
    """
    size, work_s = 0, 0.0
    async for piece in pieces:
        size += len(piece)
        check_size(provider, size, most)
        for start in range(0, len(piece), _PIECE_BYTES):
            began = time.perf_counter()
            yield piece[start : start + _PIECE_BYTES]
            work_s += time.perf_counter() - began
            if work_s > _WORK_S:
                await asyncio.sleep(min(_RESTS * work_s, _MAX_REST_S))
                work_s = 0.0


async def beginning(pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    """Yield the first bytes of a refusal, and what arrives of them within `REFUSAL_S` seconds."""
    size, rest, ends = 0, aiter(pieces), asyncio.get_running_loop().time() + REFUSAL_S
    with suppress(TimeoutError, StopAsyncIteration):
        while size <= MAX_ERROR_BYTES:
            async with asyncio.timeout_at(ends):
                piece = await anext(rest)
            size += len(piece)
            yield piece


def with_pieces(stream: Any, pieces: AsyncIterable[bytes], kind: type[Any]) -> Any:
    """Return the stream of a response with other pieces; `kind` is httpx's or httpx2's `AsyncByteStream`."""

    def iterate(_: object) -> AsyncIterable[bytes]:
        return pieces

    async def aclose(_: object) -> None:
        await stream.aclose()

    return type("Pieces", (kind,), {"__aiter__": iterate, "aclose": aclose})()


async def events_in(provider: str, pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    """Yield the data of the events of a stream; raises as `bounded` and `Events`.

    A body that is JSON instead of a stream is yielded as one event. A page, such as a proxy sends, is a
    `ProviderFailed`, and any other text without events a `TransientFault`.
    """
    events, other, beginning, is_stream = Events(), bytearray(), b"", None
    async for piece in bounded(provider, pieces):
        if is_stream is None and (start := piece.removeprefix(_BOM).lstrip()):
            is_stream = start[:1] not in b"{[<"
            beginning = start[:_SHOWN_BYTES]
        if is_stream is False:
            other += piece
            _check_size(len(other))
            continue
        for data in events.complete(piece):
            yield data
            beginning = b""
    for data in events.last():
        yield data
        beginning = b""
    if beginning and is_stream:
        raise TransientFault(f"the model's server sent no events: {beginning.decode('utf-8', 'replace')}")
    if other.lstrip().startswith(b"<"):
        page = other[:MAX_ERROR_BYTES].decode("utf-8", "replace")
        text = shown_reason(f"the model's server sent a page instead of a reply: {page}")
        raise ProviderFailed(provider, text, unavailable=True)
    if other:
        yield _with_few_values(bytes(other))


def json_event(data: bytes) -> dict[str, Any]:
    """Return the object in an event, or the first one of an array; `{}` for any other JSON.

    Raises:
        TransientFault: The data is not JSON; the message contains its beginning.
    """
    try:
        value: object = _DECODER.decode(data.decode("utf-8-sig", "replace").strip())
    except (ValueError, RecursionError) as error:
        text = f"the model's server sent no JSON: {data[:MAX_ERROR_BYTES].decode('utf-8', 'replace')}"
        raise TransientFault(text) from error
    if isinstance(value, list) and value:
        value = cast("list[object]", value)[0]
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _check_size(size: int) -> None:
    if size > MAX_EVENT_BYTES:
        raise TransientFault(f"the model's server sent an event of more than {MAX_EVENT_BYTES} bytes")


def _with_few_values(data: bytes) -> bytes:
    if has_more_values(data, MAX_VALUES):
        raise TransientFault(f"the model's server sent an event of more than {MAX_VALUES} values")
    return data


class Events:
    """Divides a stream into events.

    See https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        """The incomplete last line."""
        self._data: list[bytes] = []
        """The data lines of the incomplete event."""
        self._bytes = 0
        """The size of the incomplete event."""
        self._after_return = False
        self._failed = False
        """Whether the incomplete event is named `error`."""

    def complete(self, piece: bytes) -> Generator[bytes]:
        """Yield the data of the events that a piece completes; raise `TransientFault` if one is too large."""
        if self._after_return and piece.startswith(b"\n"):
            # The second byte of a line end, whose first byte ended the previous piece.
            piece = piece[1:]
        self._after_return = piece.endswith(b"\r")
        self._bytes += len(piece)
        _check_size(self._bytes)
        self._rest += piece
        # A long line that arrives in small pieces must not be searched again with each of them.
        if b"\n" not in piece and b"\r" not in piece:
            return
        lines = self._rest.splitlines(keepends=True)
        self._rest = bytearray() if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        for line in lines:
            field = bytes(line).rstrip(b"\r\n").removeprefix(_BOM)
            if field.startswith(b"data:"):
                self._data.append(field[5:].removeprefix(b" "))
            elif field.startswith((b"error:", b"event: error")):
                # llama.cpp wrote `error:` in the place of `data:` until the end of 2025.
                self._failed = True
                self._data += filter(None, [field.partition(b"error:")[2]])
            elif not field:
                self._bytes = len(self._rest)
                if data := b"\n".join(self._data).strip():
                    yield _with_few_values(_as_error(data) if self._failed else data)
                self._data.clear()
                self._failed = False

    def last(self) -> Generator[bytes]:
        """Yield the complete data at the end of a stream whose last empty line is missing."""
        for data in self.complete(b"\n\n"):
            with suppress(TransientFault):
                if data.startswith(END_FIELD.encode()) or json_event(data):
                    yield data


def _as_error(data: bytes) -> bytes:
    """Return the data of an event named `error` as an object with the field `error`."""
    try:
        fields = json_event(data)
    except TransientFault:
        return json.dumps({"error": data.decode("utf-8", "replace")}).encode()
    return data if "error" in fields else json.dumps({"error": fields}).encode()
