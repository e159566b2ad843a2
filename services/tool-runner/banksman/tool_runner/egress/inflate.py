from __future__ import annotations

import zlib
from typing import Protocol

_STEP_BYTES = 64 * 1024
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class _Decompressor(Protocol):
    @property
    def unconsumed_tail(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = 0, /) -> bytes: ...


class UnsupportedEncoding(Exception):
    """A `Content-Encoding` that is not exactly one of identity, gzip and deflate."""


class Inflater:
    """Collects a response body and inflates at most `max_bytes` of it, so that a gzip bomb stays small."""

    def __init__(self, content_encoding: str, max_bytes: int) -> None:
        """Select the decompressor by the value of `Content-Encoding`.

        Raises:
            UnsupportedEncoding: the value is not one supported encoding.
        """
        self._max_bytes = max_bytes
        self._body = bytearray()
        self._over = False
        self._begun = False
        self._encoding = content_encoding.strip().lower()
        match self._encoding:
            case "" | "identity":
                self._inflate: _Decompressor | None = None
            case "gzip" | "x-gzip":
                self._inflate = zlib.decompressobj(_GZIP_WINDOW)
            case "deflate":
                self._inflate = zlib.decompressobj()
            case _:
                raise UnsupportedEncoding(f"content encoding {content_encoding[:80]!r} is not supported")

    @property
    def body(self) -> bytes:
        return bytes(self._body)

    @property
    def full(self) -> bool:
        return self._over

    def add(self, chunk: bytes) -> None:
        """Add received bytes; bytes beyond the limit are not inflated.

        Raises:
            ValueError: the bytes do not have the encoding of the header.
        """
        inflate = self._decompressor(chunk)
        if inflate is None:
            self._append(chunk)
            return
        pending = chunk
        try:
            while pending and not self._over:
                # Without max_length, zlib would inflate a bomb of one chunk to a thousand times its size.
                self._append(inflate.decompress(pending, _STEP_BYTES))
                pending = inflate.unconsumed_tail
        except zlib.error as error:
            raise ValueError(f"the body is not valid {self._encoding}: {error}") from error

    def _decompressor(self, chunk: bytes) -> _Decompressor | None:
        if self._encoding == "deflate" and not self._begun and chunk and chunk[0] & 0x0F != zlib.DEFLATED:
            # Some servers send raw deflate without the zlib header that RFC 9110, section 8.4.1.2, requires.
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._begun = self._begun or bool(chunk)
        return self._inflate

    def _append(self, data: bytes) -> None:
        room = self._max_bytes - len(self._body)
        self._body += data[:room]
        self._over = self._over or len(data) > room
