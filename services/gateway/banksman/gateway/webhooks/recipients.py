"""Limits of what one recipient gets, from all tenants together: a recipient did not agree to get anything."""

from __future__ import annotations

from typing import Final

from banksman.contracts.urls import parse_url
from banksman.gateway.webhooks.models import Webhook
from banksman.gateway.webhooks.sending import recipient
from banksman.quotas.rates import Rates

MAIL_BURST: Final = 30
"""E-mails that a gateway sends to one mailbox at once."""
MAIL_EVERY_S: Final = 60.0
"""Seconds between further e-mails to one mailbox."""
TEST_BURST: Final = 10
"""Tests of one recipient, and of one tenant, at once."""
TEST_EVERY_S: Final = 10.0
"""Seconds between further tests."""


class Recipients:
    """Counts e-mails and tests by recipient. Each gateway counts for itself."""

    def __init__(self) -> None:
        self._mails = Rates(1 / MAIL_EVERY_S, burst=MAIL_BURST)
        self._tests = Rates(1 / TEST_EVERY_S, burst=TEST_BURST)

    def check_test(self, webhook: Webhook) -> None:
        """Count a test; raise `TooManyRequests` if its recipient, or its tenant, has had too many."""
        self._tests.check(f"tenant {webhook.tenant}")
        self._tests.check(_recipient_of(webhook))

    def mail_wait_s(self, webhook: Webhook) -> float:
        """Count an e-mail and return 0, or the seconds until its recipient may get one."""
        return self._mails.take(_recipient_of(webhook)) if webhook.format == "email" else 0.0


def _recipient_of(webhook: Webhook) -> str:
    if webhook.format != "email":
        return str(parse_url(webhook.url)).partition("?")[0]
    mailbox, _, domain = recipient(webhook.url).lower().rpartition("@")
    # ada+anything@example.org is the mailbox ada@example.org.
    return f"{mailbox.partition('+')[0]}@{domain}"
