"""E-mails: one attempt to hand a message to the operator's mail server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from dataclasses import dataclass
from datetime import datetime

from banksman.contracts.errors import BadInput
from banksman.gateway.mail_settings import SmtpSettings
from banksman.gateway.service.webhooks.models import QueuedDelivery

TIMEOUT_S = 10.0
"""Seconds for each step of the protocol."""
ACCEPTED = 250
"""The status of a message that the mail server took over."""
_MAILTO = re.compile(r"mailto:([A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)*[A-Za-z0-9-]{1,63})")


def recipient(url: str) -> str:
    """Return the address of a `mailto:` URL.

    Raises:
        BadInput: It is not that of one plain address.
    """
    found = _MAILTO.fullmatch(url)
    if found is None:
        raise BadInput("url", url, "one address as mailto:ada@example.org, without parameters")
    return found[1]


@dataclass(frozen=True, slots=True)
class Mailer:
    """Hands messages to a mail server."""

    settings: SmtpSettings | None

    def check(self, url: str) -> None:
        """Check the address of a webhook of the format `email`.

        Raises:
            BadInput: It is no address, or the operator set no mail server.
        """
        recipient(url)
        if self.settings is None:
            raise BadInput(
                "format", "email", "another format: no mail server is set (BANKSMAN_GATEWAY__SMTP)"
            )

    async def send(self, url: str, message: QueuedDelivery, now: datetime) -> int:
        """Hand a message over once; return the status of an accepted one.

        Raises:
            OSError: The mail server refused it, or was not reached.
        """
        if self.settings is None:
            raise OSError("no mail server is set")
        # The library of the standard blocks: a thread waits in its place, ended by the limit of each step.
        await asyncio.to_thread(_send, self.settings, recipient(url), message, now)
        return ACCEPTED


def _send(settings: SmtpSettings, to: str, message: QueuedDelivery, now: datetime) -> None:
    # A gateway that sends no e-mail does not load them.
    import smtplib
    import ssl
    from email.message import EmailMessage
    from email.utils import format_datetime

    body = json.loads(message.body)
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = settings.sender, to, body["subject"]
    mail["Date"] = format_datetime(now)
    # The same for each attempt: a receiver drops a repeat.
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
        # The server has the message: an error after that must not send it again.
        with contextlib.suppress(OSError):
            server.quit()
