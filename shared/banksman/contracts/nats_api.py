"""The NATS API: what its requests carry in addition to the frames of `frames.py`.

A request is published on `subjects.api(tenant, ...)`. Its body is the JSON of a client frame; the reply is an
`ack` or an `error` frame.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from banksman.contracts.wire import Wire

REQUEST_ID: Final = "Banksman-Request-Id"
"""Header with the idempotency key of a request. Without it the body's `id` counts."""
SCHEMA_VERSION: Final = "Banksman-Schema-Version"
"""Header with the version of the frames (`wire.WIRE_VERSION`)."""


class Replay(Wire):
    """`api.{t}.replay.{c}`: the stored events after `after_seq`.

    Each comes to the reply subject as one event frame at detail `full`, in order; an empty message ends them,
    and an `error` frame says why there are none.
    """

    after_seq: int = Field(default=0, ge=0)
