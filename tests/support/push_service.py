"""A push service as browsers use one: it takes encrypted messages, and its devices can read them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.support.web_server import web_server


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def from_base64url(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@dataclass(frozen=True)
class Browser:
    """The keys of one device, with which it decrypts its messages."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    auth: bytes = b"sixteen bytes :)"

    @property
    def point(self) -> bytes:
        uncompressed = serialization.PublicFormat.UncompressedPoint
        return self.key.public_key().public_bytes(serialization.Encoding.X962, uncompressed)

    @property
    def keys(self) -> dict[str, str]:
        return {"p256dh": base64url(self.point), "auth": base64url(self.auth)}

    def read(self, body: bytes) -> dict[str, Any]:
        """Decrypt a message as RFC 8291 describes it."""
        salt, size, point = body[:16], body[20], body[21 : 21 + body[20]]
        sender = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
        shared = self.key.exchange(ec.ECDH(), sender)
        secret = _derived(shared, self.auth, b"WebPush: info\0" + self.point + point, 32)
        key = _derived(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
        nonce = _derived(secret, salt, b"Content-Encoding: nonce\0", 12)
        text = AESGCM(key).decrypt(nonce, body[21 + size :], None)
        assert text[-1:] == b"\2" and len(body) <= 4096
        return json.loads(text[:-1])


def _derived(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(secret)


@dataclass(frozen=True)
class Pushed:
    """A message that the service received."""

    device: str
    headers: dict[str, str]
    body: bytes


@dataclass
class PushService:
    """Responds to each message with the status of its device, 201 unless the test sets another."""

    port: int = 0
    statuses: dict[str, int] = field(default_factory=dict[str, int])
    pushed: list[Pushed] = field(default_factory=list[Pushed])
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def endpoint(self, device: str) -> str:
        return f"http://{self.address}/push/{device}"

    async def serve(self, request: web.Request) -> web.Response:
        device = request.match_info["device"]
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.pushed.append(Pushed(device, headers, await request.read()))
        self._arrived.set()
        return web.Response(status=self.statuses.get(device, 201))

    async def message(self, number: int) -> Pushed:
        """Wait for the message of this number, counted from 1."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while len(self.pushed) < number:
                self._arrived.clear()
                await self._arrived.wait()
        return self.pushed[number - 1]


@asynccontextmanager
async def push_service() -> AsyncGenerator[PushService]:
    service = PushService()
    app = web.Application()
    app.router.add_post("/push/{device}", service.serve)
    async with web_server(app) as service.port:
        yield service
