"""Encryption of objects in stores that all runners can read."""

from __future__ import annotations

from typing import Final

from nacl.exceptions import CryptoError
from nacl.secret import Aead
from nacl.utils import random

SEAL_BYTES: Final = Aead.NONCE_SIZE + Aead.MACBYTES
"""Bytes that a sealed object has more than its content."""


def new_key() -> str:
    """Return a random key in hexadecimal, for one snapshot or output."""
    return random(Aead.KEY_SIZE).hex()


def sealed(content: bytes, key: str, name: str) -> bytes:
    """Return the bytes of an object: its content encrypted, and bound to its name."""
    return bytes(Aead(bytes.fromhex(key)).encrypt(content, name.encode()))


def opened(data: bytes, key: str, name: str) -> bytes | None:
    """Return the content of a sealed object; None if key, name or bytes are others."""
    try:
        return Aead(bytes.fromhex(key)).decrypt(data, name.encode())
    except CryptoError:
        return None
