"""Messages of Web Push: encrypted for one device, and signed with a key that is derived from the signing key.

https://www.rfc-editor.org/rfc/rfc8291 (encryption), https://www.rfc-editor.org/rfc/rfc8292 (VAPID)
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from banksman.contracts.errors import BadInput
from banksman.contracts.urls import parse_url
from banksman.gateway.webhooks.store import Device, PushKeys, QueuedDelivery

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

TTL_S = 24 * 3600
"""Seconds for which a push service stores a message for a device that is offline."""
_RECORD_BYTES = 4_096
_KEY_BYTES, _AUTH_BYTES, _SALT_BYTES = 65, 16, 16
_TOKEN_LIFETIME = timedelta(hours=12)
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


class PushSigner:
    """The key by which push services recognise this system.

    All gateways derive the same key from the signing key. The libraries are imported on first use.
    """

    def __init__(self, signing_key: bytes) -> None:
        self._signing_key = signing_key

    @cached_property
    def _private_key(self) -> EllipticCurvePrivateKey:
        from cryptography.hazmat.primitives.asymmetric import ec

        digest = hmac.digest(self._signing_key, b"web push", hashlib.sha512)
        # The remainder of 512 bits is practically uniform.
        return ec.derive_private_key(int.from_bytes(digest) % (_P256_ORDER - 1) + 1, ec.SECP256R1())

    @cached_property
    def public_key(self) -> str:
        """The `applicationServerKey` of subscriptions, in base64url."""
        return encoded(_point(self._private_key))

    def headers(self, url: str, device: Device, message: QueuedDelivery, now: datetime) -> dict[str, str]:
        return {
            "authorization": f"vapid t={self._token(url, device, now)}, k={self.public_key}",
            "content-encoding": "aes128gcm",
            "content-type": "application/octet-stream",
            "ttl": str(TTL_S),
            # A push service replaces a stored message of the same topic, so a repeat is shown once.
            "topic": message.id.removeprefix("msg-")[:32],
            "urgency": "high",
        }

    def _token(self, url: str, device: Device, now: datetime) -> str:
        import jwt

        claims = {"aud": parse_url(url).origin, "exp": int((now + _TOKEN_LIFETIME).timestamp())}
        # Apple's service requires a contact, and accepts the address of the page.
        contact = {"sub": device.origin} if device.origin.startswith("https://") else {}
        return jwt.encode(claims | contact, self._private_key, algorithm="ES256")


def encrypted_for(keys: PushKeys, text: bytes) -> bytes:
    """Return a message that only the device can read; raise `BadInput` if the device's keys are invalid."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return encrypted(keys, text, secrets.token_bytes(_SALT_BYTES), ec.generate_private_key(ec.SECP256R1()))


def encrypted(keys: PushKeys, text: bytes, salt: bytes, sender: EllipticCurvePrivateKey) -> bytes:
    """Return the body of a message with the given salt and key, which must be new for each message."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    device_point, auth = _decoded(keys.p256dh, _KEY_BYTES, "p256dh"), _decoded(keys.auth, _AUTH_BYTES, "auth")
    try:
        device = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), device_point)
    except ValueError as error:
        raise BadInput("keys.p256dh", None, "a point of the curve P-256") from error
    point = _point(sender)
    shared = sender.exchange(ec.ECDH(), device)
    secret = _derived(shared, auth, b"WebPush: info\0" + device_point + point, 32)
    key = _derived(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _derived(secret, salt, b"Content-Encoding: nonce\0", 12)
    # The byte 2 ends the only record (RFC 8188).
    sealed = AESGCM(key).encrypt(nonce, text + b"\2", None)
    return salt + _RECORD_BYTES.to_bytes(4) + bytes([len(point)]) + point + sealed


def encoded(data: bytes) -> str:
    """Return base64url without padding, as browsers write keys."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str, size: int, field: str) -> bytes:
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != size:
        raise BadInput(f"keys.{field}", None, f"{size} bytes in base64url")
    return data


def _derived(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(secret)


def _point(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
