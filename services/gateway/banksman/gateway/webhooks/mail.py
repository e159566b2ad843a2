"""E-mails: one attempt to send a message through the operator's mail server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from dataclasses import dataclass
from datetime import datetime

from banksman.contracts.errors import BadInput
from banksman.gateway.settings import SmtpSettings
from banksman.gateway.webhooks.models import QueuedDelivery

TIMEOUT_S = 10.0
"""Seconds for each step of the protocol."""
ACCEPTED = 250
_MAILTO = re.compile(r"mailto:([A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)*[A-Za-z0-9-]{1,63})")


def recipient(url: str) -> str:
    """Return the address of a `mailto:` URL; raise `BadInput` for several addresses, or parameters."""
    found = _MAILTO.fullmatch(url)
    if found is None:
        raise BadInput("url", url, "one address as mailto:ada@example.org, without parameters")
    return found[1]


@dataclass(frozen=True, slots=True)
class Mailer:
    settings: SmtpSettings | None

    def check(self, url: str) -> None:
        recipient(url)
        if self.settings is None:
            raise BadInput(
                "format", "email", "another format: no mail server is set (BANKSMAN_GATEWAY__SMTP)"
            )

    async def send(self, url: str, message: QueuedDelivery, now: datetime) -> int:
        """Return the status of an accepted message; raise `OSError` if the mail server does not accept it."""
        if self.settings is None:
            raise OSError("no mail server is set")
        # smtplib blocks, so it runs in a thread, whose time is bounded by the limit of each step.
        await asyncio.to_thread(_send, self.settings, recipient(url), message, now)
        return ACCEPTED


def _send(settings: SmtpSettings, to: str, message: QueuedDelivery, now: datetime) -> None:
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
