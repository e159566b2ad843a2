"""The NATS API: what its requests carry in addition to the frames of `frames.py`.

A request is sent to `subjects.api(tenant, ...)`. Its body is the JSON of a client frame. The reply is an
`ack` or an `error` frame.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from banksman.contracts.wire import Wire

REQUEST_ID: Final = "Banksman-Request-Id"
"""Header with the idempotency key of a request; if it is missing, the body's `id` is the key."""
SCHEMA_VERSION: Final = "Banksman-Schema-Version"
"""Header with the version of the frames (`wire.WIRE_VERSION`)."""


class Replay(Wire):
    """`api.{t}.replay.{c}`: request the stored events after `after_seq`.

    The reply subject receives one event frame per event at detail `full`, in order, then an empty message. If
    the request fails, it receives one `error` frame.
    """

    after_seq: int = Field(default=0, ge=0)
