"""One attempt to send a message, by HTTP with a signature or by e-mail, to an address that is checked first.

https://www.standardwebhooks.com/
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import re
import socket
from datetime import datetime
from ipaddress import ip_address
from typing import Self
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import ResolveResult
from standardwebhooks import Webhook as Signer

from banksman.bus.secrets import SecretBox
from banksman.contracts.errors import BadInput
from banksman.gateway.settings import GatewaySettings, SmtpSettings
from banksman.gateway.webhooks.models import QueuedDelivery, StoredFormat, Webhook
from banksman.gateway.webhooks.push_messages import PushSigner, encrypted_for
from banksman.runtime.addresses import is_public

TIMEOUT_S = 10.0
"""Seconds for one attempt, from the name look-up to the status of the response; with a mail server, for each
step of the protocol."""
MAIL_ACCEPTED = 250
_MAILTO = re.compile(r"mailto:([A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)*[A-Za-z0-9-]{1,63})")


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


def recipient(url: str) -> str:
    """Return the address of a `mailto:` URL; raise `BadInput` for several addresses, or parameters."""
    found = _MAILTO.fullmatch(url)
    if found is None:
        raise BadInput("url", url, "one address as mailto:ada@example.org, without parameters")
    return found[1]


def secret_of(signing_key: bytes, tenant: str, webhook_id: str) -> str:
    """Return the secret of a webhook, which is derived from the system's signing key and stored nowhere."""
    text = f"webhook\n{tenant}\n{webhook_id}".encode()
    return "whsec_" + base64.b64encode(hmac.digest(signing_key, text, hashlib.sha256)).decode()


class Sender:
    """Sends messages. As a context manager it owns the connections."""

    def __init__(self, signing_key: bytes, settings: GatewaySettings, push_signer: PushSigner) -> None:
        self._private = frozenset(settings.webhook_addresses)
        self._smtp = settings.smtp
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
        if format != "email":
            check_url(url, self._private)
        elif recipient(url) and self._smtp is None:
            raise BadInput(
                "format", "email", "another format: no mail server is set (BANKSMAN_GATEWAY__SMTP)"
            )

    async def send(self, webhook: Webhook, message: QueuedDelivery, now: datetime) -> int:
        """Return the status of the response, whose body is not read; raise `OSError` if none arrived."""
        try:
            self.check(webhook.format, webhook.url)
        except BadInput as error:
            raise PrivateAddress(str(error)) from error
        if webhook.format == "email" and self._smtp is not None:
            # smtplib blocks, so it runs in a thread, whose time is bounded by the limit of each step.
            await asyncio.to_thread(send_mail, self._smtp, recipient(webhook.url), message, now)
            return MAIL_ACCEPTED
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
        opened = self._box.open(webhook.task.sealed, webhook.key)
        return {} if opened is None else json.loads(opened)


class PublicHosts(aiohttp.ThreadedResolver):
    """A resolver that returns only public addresses. Connections go exactly to the checked addresses."""

    def __init__(self, private: frozenset[str]) -> None:
        super().__init__()
        self._private = private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host; raise `PrivateAddress` if one of them is not public."""
        found = await super().resolve(host, port, family)
        allowed = f"{host}:{port}" in self._private
        # As in web_fetch, a single private address is refused, because the client may use any address.
        if not allowed and not all(is_public(ip_address(one["host"])) for one in found):
            raise PrivateAddress(f"{host} is not a public host")
        return found


def _may_be_public(host: str) -> bool:
    try:
        return is_public(ip_address(host))
    except ValueError:
        return host != "localhost" and not host.endswith((".localhost", ".internal", ".local"))


def send_mail(settings: SmtpSettings, to: str, message: QueuedDelivery, now: datetime) -> None:
    """Send an e-mail; raise `OSError` if the mail server does not accept it."""
    # Imported here, because most gateways send no e-mail.
    import smtplib
    import ssl
    from email.message import EmailMessage
    from email.utils import format_datetime

    body = json.loads(message.body)
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = settings.sender, to, body["subject"]
    mail["Date"] = format_datetime(now)
    # The same id for each attempt, by which receivers drop a repeat.
    mail["Message-ID"] = f"<{message.id}@banksman>"
    mail.set_content(body["text"])
    context = ssl.create_default_context()
    if settings.security == "tls":
        server = smtplib.SMTP_SSL(settings.host, settings.port, timeout=TIMEOUT_S, context=context)
    else:
        server = smtplib.SMTP(settings.host, settings.port, timeout=TIMEOUT_S)
    with contextlib.closing(server):
        if settings.security == "starttls":
            server.starttls(context=context)
        if settings.user is not None and settings.password is not None:
            server.login(settings.user, settings.password.get_secret_value())
        server.send_message(mail)
        # The server has accepted the message: an error from here on must not cause a second attempt.
        with contextlib.suppress(OSError):
            server.quit()
