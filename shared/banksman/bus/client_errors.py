"""Errors that nats-py reports asynchronously: protocol errors, refused publishes, dropped messages."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

from nats.errors import Error as NatsError
from nats.errors import SlowConsumerError

from banksman.bus.replies import Replies
from banksman.bus.settings import BusStats

logger = logging.getLogger(__name__)

SAME_WARNING_S = 10.0
"""Seconds until a warning is logged again."""
WARNINGS_REMEMBERED = 100

_DENIED_SUBSCRIPTION = re.compile(r'permissions violation for subscription to "([^"]+)"', re.IGNORECASE)
_DENIED_PUBLISH = re.compile(r'permissions violation for publish to "([^"]+)"', re.IGNORECASE)


class ClientErrors:
    """Counts and logs the errors of one connection, and passes them to affected requests and callbacks."""

    def __init__(self, name: str, inbox_prefix: str, stats: BusStats, replies: Replies) -> None:
        self.on_slow_consumer: list[Callable[[str], None]] = []
        """Called with each subject whose messages were dropped."""
        self.optional: set[str] = set()
        """Subjects, in lower case, whose subscriptions the server may refuse without an error."""
        self._name = name
        self._inbox = f"{inbox_prefix.lower()}."
        self._stats = stats
        self._replies = replies
        self._logged_at: dict[str, float] = {}
        """The monotonic time of the last log line, by warning."""

    async def report(self, error: Exception) -> None:
        """Handle an error that nats-py reports."""
        match error:
            case SlowConsumerError():
                self._stats.slow_consumer += 1
                subject = error.sub.subject if error.sub else error.subject
                self._log_rarely(f"messages dropped: the queue of {subject} is full")
                for callback in tuple(self.on_slow_consumer):
                    callback(subject)
            # The server reports a forbidden publish only here, never to the publisher.
            case _ if "permissions violation" in str(error).lower():
                if self._is_optional(str(error)):
                    logger.info("%s: %s", self._name, error)
                    return
                denied = _DENIED_PUBLISH.search(str(error))
                requested = denied is not None and self._replies.forbidden(denied[1])
                if denied and not requested and self._is_late_reply(denied[1]):
                    logger.info("%s: a reply came too late: %s", self._name, error)
                    return
                self._stats.forbidden += 1
                logger.error("%s: %s", self._name, error)
            case NatsError() | OSError() | TimeoutError():
                self._stats.errors += 1
                self._log_rarely(f"{self._name}: {str(error) or type(error).__name__}")
            case _:
                self._stats.errors += 1
                logger.error("%s: a subscription's callback failed", self._name, exc_info=error)

    def _is_optional(self, error: str) -> bool:
        denied = _DENIED_SUBSCRIPTION.search(error)
        return denied is not None and denied[1].lower() in self.optional

    def _is_late_reply(self, subject: str) -> bool:
        """Return whether a refused subject is the inbox of another user.

        The server permits a reply for a limited time, and only on the connection that received the request.
        It refuses a reply that is sent after a partition, for which no process waits any more.
        """
        inbox = subject.lower().startswith("_inbox")
        return inbox and not subject.lower().startswith(self._inbox)

    def _log_rarely(self, warning: str) -> None:
        # nats-py reports each dropped message of a flood, and each failed attempt to connect.
        now = time.monotonic()
        if now - self._logged_at.get(warning, -SAME_WARNING_S) >= SAME_WARNING_S:
            if len(self._logged_at) >= WARNINGS_REMEMBERED:
                self._logged_at.clear()
            self._logged_at[warning] = now
            logger.warning(warning)
