"""The mail server of the operator."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from banksman.runtime.settings import Section


class SmtpSettings(Section):
    """The mail server that sends the e-mails of webhooks."""

    host: str = Field(min_length=1)
    port: int = Field(default=587, ge=1, le=65535)
    security: Literal["starttls", "tls", "none"] = "starttls"
    """`none` is for a mail server on the same machine."""
    user: str | None = None
    """None for a mail server without sign-in."""
    password: SecretStr | None = None
    sender: str = Field(pattern=r"^[^\s<>@]+@[^\s<>@]+$")
    """The sender's address."""
