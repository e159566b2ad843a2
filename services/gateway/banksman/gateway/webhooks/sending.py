"""One attempt to send a message, by HTTP with a signature or by e-mail, to an address that is checked first.

https://www.standardwebhooks.com/, https://www.rfc-editor.org/rfc/rfc8291 (encryption of Web Push), and
https://www.rfc-editor.org/rfc/rfc8292 (VAPID)
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import re
import secrets
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from standardwebhooks import Webhook as Signer

from banksman.bus.secrets import SecretBox
from banksman.contracts.errors import BadInput
from banksman.contracts.urls import Url, UrlRefused, parse_url
from banksman.gateway.pinned_http import PinnedHttp, RequestErrors
from banksman.gateway.settings import GatewaySettings, SmtpSettings
from banksman.gateway.webhooks.store import Device, PushKeys, QueuedDelivery, StoredFormat, Webhook
from banksman.runtime.addresses import is_public, may_be_public
from banksman.runtime.pinned_network import AddressPolicy

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
