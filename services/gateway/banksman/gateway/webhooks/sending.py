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
from datetime import datetime

from standardwebhooks import Webhook as Signer

from banksman.bus.secrets import SecretBox
from banksman.contracts.errors import BadInput
from banksman.contracts.urls import Url, UrlRefused, parse_url
from banksman.gateway.pinned_http import PinnedHttp, RequestErrors
from banksman.gateway.settings import GatewaySettings, SmtpSettings
from banksman.gateway.webhooks.push_messages import PushSigner, encrypted_for
from banksman.gateway.webhooks.store import QueuedDelivery, StoredFormat, Webhook
from banksman.runtime.addresses import is_public, may_be_public
from banksman.runtime.pinned_network import AddressPolicy

TIMEOUT_S = 10.0
"""Seconds for one attempt, from the name look-up to the status of the response; with a mail server, for each
step of the protocol."""
MAIL_ACCEPTED = 250
_EXPECTED = "an https address of a public host, without credentials"
_MAILTO = re.compile(r"mailto:([A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)*[A-Za-z0-9-]{1,63})")


def _parsed(text: str) -> Url:
    try:
        return parse_url(text)
    except UrlRefused as refused:
        raise BadInput("url", text, f"{_EXPECTED}; {refused}") from refused


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
    """Sends messages to addresses that are public, or that the operator allows as `host:port`."""

    def __init__(self, signing_key: bytes, settings: GatewaySettings, push_signer: PushSigner) -> None:
        self._private = frozenset(settings.webhook_addresses)
        self._smtp = settings.smtp
        self._push_signer = push_signer
        self._key = signing_key
        self._box = SecretBox(signing_key)
        self._http = PinnedHttp()

    def check(self, format: StoredFormat, url: str) -> None:
        """Raise `BadInput` if the address is not allowed. No name is looked up."""
        if format != "email":
            self._checked(url)
        elif recipient(url) and self._smtp is None:
            raise BadInput(
                "format", "email", "another format: no mail server is set (BANKSMAN_GATEWAY__SMTP)"
            )

    async def send(self, webhook: Webhook, message: QueuedDelivery, now: datetime) -> int:
        """Return the status of the response, whose body is not read; raise `OSError` if none arrived."""
        try:
            self.check(webhook.format, webhook.url)
        except BadInput as error:
            raise OSError(str(error)) from error
        if webhook.format == "email" and self._smtp is not None:
            # smtplib blocks, so it runs in a thread, whose time is bounded by the limit of each step.
            await asyncio.to_thread(send_mail, self._smtp, recipient(webhook.url), message, now)
            return MAIL_ACCEPTED
        url, (headers, body) = self._checked(webhook.url), self._request(webhook, message, now)
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                self._http.request("POST", url, headers, body, allowed=self._policy(url)) as response,
            ):
                return response.status
        except RequestErrors as error:
            raise OSError(str(error) or type(error).__name__) from error

    def _checked(self, text: str) -> Url:
        url = _parsed(text)
        if not self._is_private(url) and (url.scheme != "https" or not may_be_public(url.host)):
            raise BadInput("url", text, _EXPECTED)
        return url

    def _is_private(self, url: Url) -> bool:
        """Return whether the operator allows a host that need be neither public nor served by https."""
        return f"{url.host}:{url.port}" in self._private

    def _policy(self, url: Url) -> AddressPolicy:
        return (lambda _: True) if self._is_private(url) else is_public

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
