"""Encryption of stored data: objects that all runners can read, and secrets of tenants."""

from __future__ import annotations

import base64
import hmac
from typing import Final

from nacl.exceptions import CryptoError
from nacl.secret import Aead
from nacl.utils import random

SEAL_BYTES: Final = Aead.NONCE_SIZE + Aead.MACBYTES
"""Bytes by which a sealed object is longer than its content."""


def new_key() -> str:
    """Return a random key in hexadecimal, for one snapshot or output."""
    return random(Aead.KEY_SIZE).hex()


def sealed(content: bytes, key: str, name: str) -> bytes:
    """Return the encrypted content of an object, bound to its name."""
    return bytes(Aead(bytes.fromhex(key)).encrypt(content, name.encode()))


def opened(data: bytes, key: str, name: str) -> bytes | None:
    """Return the content of a sealed object; None if the key, the name or the bytes do not match."""
    try:
        return Aead(bytes.fromhex(key)).decrypt(data, name.encode())
    except CryptoError:
        return None


class SecretBox:
    """Encrypts secrets of tenants with a key derived from the signing key, which is in no store."""

    def __init__(self, signing_key: bytes) -> None:
        """Create the box of a service; an empty key seals and opens nothing."""
        self._key = hmac.digest(signing_key, b"tenant-secrets", "sha256").hex() if signing_key else None

    def seal(self, value: str, name: str) -> str:
        """Return an encrypted value in base64, bound to its name. The box must have a key."""
        assert self._key is not None
        return base64.b64encode(sealed(value.encode(), self._key, name)).decode()

    def open(self, text: str, name: str) -> str | None:
        """Return the decrypted value; None without a key, or if it was sealed with another key or name."""
        if self._key is None:
            return None
        content = opened(base64.b64decode(text), self._key, name)
        return None if content is None else content.decode()
