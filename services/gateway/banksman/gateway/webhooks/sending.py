"""One attempt to send a webhook's message: the address is checked, the body signed, the response bounded.

https://www.standardwebhooks.com/
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
from collections.abc import Sequence
from datetime import datetime
from ipaddress import ip_address
from typing import Self
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from standardwebhooks import Webhook as Signer

from banksman.bus.secrets.sealing import SecretBox
from banksman.contracts.errors import BadInput
from banksman.gateway.webhooks.mail import Mailer
from banksman.gateway.webhooks.models import QueuedDelivery, StoredFormat, Webhook
from banksman.gateway.webhooks.push_messages import PushSigner, encrypted_for
from banksman.runtime.addresses import is_public

TIMEOUT_S = 10.0
"""Seconds for one attempt, from the name look-up to the status of the response."""


class PrivateAddress(OSError):
    """A webhook's address is in a network that is not public."""


def check_url(url: str, private: frozenset[str]) -> None:
    """Raise `BadInput` if an address is not https, has credentials, or is private. No name is looked up.

    `private` has the `host:port` pairs that the operator allows although they are not public, also without
    https.
    """
    expected = "an https address of a public host, without credentials"
    try:
        parts = urlsplit(url)
        port = parts.port or 443
    except ValueError as error:
        raise BadInput("url", url, expected) from error
    host = parts.hostname
    if not host or parts.username is not None or parts.scheme not in ("http", "https"):
        raise BadInput("url", url, expected)
    if f"{host}:{port}" in private:
        return
    if parts.scheme != "https" or not _may_be_public(host):
        raise BadInput("url", url, expected)


def secret_of(signing_key: bytes, tenant: str, webhook_id: str) -> str:
    """Return the secret of a webhook, which is derived from the system's signing key and stored nowhere."""
    text = f"webhook\n{tenant}\n{webhook_id}".encode()
    return "whsec_" + base64.b64encode(hmac.digest(signing_key, text, hashlib.sha256)).decode()


class Sender:
    """Sends messages. As a context manager it owns the connections."""

    def __init__(
        self, signing_key: bytes, private: Sequence[str], mailer: Mailer, push_signer: PushSigner
    ) -> None:
        self._private = frozenset(private)
        self._mailer = mailer
        self._push_signer = push_signer
        self._key = signing_key
        self._box = SecretBox(signing_key)
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        # Connections are not reused, so that each attempt looks the name up again.
        connector = aiohttp.TCPConnector(resolver=PublicHosts(self._private), force_close=True, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    def check(self, format: StoredFormat, url: str) -> None:
        """Raise `BadInput` if the address is not allowed. No name is looked up."""
        if format == "email":
            self._mailer.check(url)
        else:
            check_url(url, self._private)

    async def send(self, webhook: Webhook, message: QueuedDelivery, now: datetime) -> int:
        """Return the status of the response, whose body is not read; raise `OSError` if none arrived."""
        try:
            self.check(webhook.format, webhook.url)
        except BadInput as error:
            raise PrivateAddress(str(error)) from error
        if webhook.format == "email":
            return await self._mailer.send(webhook.url, message, now)
        headers, body = self._request(webhook, message, now)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with self._session.post(
                webhook.url,
                data=body,
                headers={"user-agent": "banksman", **headers},
                timeout=timeout,
                # A redirect could lead to an address that was not checked.
                allow_redirects=False,
            ) as response:
                return response.status
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            cause = error.__cause__ if isinstance(error.__cause__, PrivateAddress) else error
            raise OSError(str(cause) or type(cause).__name__) from error

    def _request(
        self, webhook: Webhook, message: QueuedDelivery, now: datetime
    ) -> tuple[dict[str, str], bytes]:
        body = message.body.encode()
        if webhook.device is not None:
            headers = self._push_signer.headers(webhook.url, webhook.device, message, now)
            return headers, encrypted_for(webhook.device.keys, body)
        signer = Signer(secret_of(self._key, webhook.tenant, webhook.id))
        return {
            "content-type": "application/json",
            "webhook-id": message.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": signer.sign(message.id, now, message.body),
            **self._wanted_headers(webhook),
        }, body

    def _wanted_headers(self, webhook: Webhook) -> dict[str, str]:
        if webhook.task is None:
            return {}
        opened = self._box.open(webhook.task.sealed, f"{webhook.tenant}.{webhook.id}")
        return {} if opened is None else json.loads(opened)


class PublicHosts(AbstractResolver):
    """A resolver that returns only public addresses. Connections go exactly to the checked addresses."""

    def __init__(self, private: frozenset[str]) -> None:
        self._private = private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a host; raise `PrivateAddress` if one of them is not public."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(info[4][0]) for info in found]
        allowed = f"{host}:{port}" in self._private
        # As in web_fetch, a single private address is refused, because the client may use any address.
        if not allowed and not all(is_public(ip_address(address)) for address in addresses):
            raise PrivateAddress(f"{host} is not a public host")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=info[0],
                proto=info[2],
                flags=socket.AI_NUMERICHOST,
            )
            for address, info in zip(addresses, found, strict=True)
        ]

    async def close(self) -> None: ...


def _may_be_public(host: str) -> bool:
    try:
        return is_public(ip_address(host))
    except ValueError:
        return host != "localhost" and not host.endswith((".localhost", ".internal", ".local"))
