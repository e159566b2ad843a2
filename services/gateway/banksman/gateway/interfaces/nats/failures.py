"""Report the failures of requests without a reply subject."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from typing import Any, cast

from banksman.bus.connection import Bus
from banksman.bus.dead import NATS_API, dead_letter
from banksman.bus.jetstream import count_below
from banksman.bus.messages import Message
from banksman.bus.names import DEAD
from banksman.contracts import subjects
from banksman.contracts.api import REQUEST_ID
from banksman.contracts.errors import BadInput, BanksmanError
from banksman.contracts.frames import error_frame

logger = logging.getLogger(__name__)

MAX_LETTERS = 1_000
"""Maximum dead-lettered requests of all tenants together. Further failed requests are only logged."""
MAX_LETTER_BYTES = 64 * 1024
"""Maximum bytes of a request that is dead-lettered."""


@dataclass(frozen=True, slots=True)
class RequestFailures:
    """Reports failed requests to their tenants."""

    bus: Bus
    confidential: frozenset[str]
    """Operations whose requests may contain secrets: reports of their failures omit the bodies."""

    async def report(self, request: Message, error: BanksmanError) -> None:
        """Publish a failure on `api.{t}.error`, and dead-letter the request."""
        _, tenant, *action = request.subject.split(".")
        secret = ".".join(action[:2]) in self.confidential
        if secret and isinstance(error, BadInput):
            error = BadInput(error.field, None, error.expected)
        await self.bus.publish(subjects.api(tenant, "error"), _frame(request, error))
        # A request cannot be replayed, and its sender receives the error: without room in DEAD little is
        # lost.
        if len(request.data) > MAX_LETTER_BYTES or not await self._has_room():
            logger.warning("%s: a failed request was not dead-lettered: %s", request.subject, error)
            return
        await dead_letter(
            self.bus,
            subject=request.subject,
            stream=NATS_API,
            stream_seq=time.time_ns(),
            reason=str(error),
            payload=b"" if secret else request.data,
            headers=request.headers,
        )

    async def _has_room(self) -> bool:
        """Return whether DEAD has fewer than `MAX_LETTERS` letters of requests, of all tenants together."""
        return await count_below(self.bus, DEAD, subjects.all_of("dead", NATS_API)) < MAX_LETTERS


def _frame(request: Message, error: BanksmanError) -> bytes:
    """Return the error frame of a request: `reply_to` is its id, and the details name its subject."""
    frame = error_frame(error, request.headers.get(REQUEST_ID) or _id_in(request.data))
    details = {**(frame.details or {}), "subject": request.subject}
    return frame.model_copy(update={"details": details}).model_dump_json(exclude_none=True).encode()


def _id_in(body: bytes) -> str | None:
    """Return the `id` of a body; None if it has none."""
    try:
        value: Any = json.loads(body)
    except ValueError:
        return None
    found = cast(dict[str, Any], value).get("id") if isinstance(value, dict) else None
    return found if isinstance(found, str) and len(found) <= 128 else None
