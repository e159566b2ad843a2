"""Streams and consumers as data: every setting, and the request that makes them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from banksman.bus.settings import Replicas

SECOND_NS = 1_000_000_000
MAX_MESSAGE_BYTES = 1024 * 1024 - 16 * 1024
"""Bytes of one stored message, its headers included: what `max_payload` leaves when a dead letter's own
headers come on top."""
MAX_WORK_BYTES = MAX_MESSAGE_BYTES - 16 * 1024
"""Bytes of a message that becomes part of a commit: the log's own words about it come on top."""
DUPLICATE_WINDOW_S = 600
ACK_WAIT_S = 3
MAX_ACK_PENDING = 10_000


@dataclass(frozen=True, slots=True)
class StorageBudget:
    """The bytes that all streams together may take.

    Each stream reserves its share, so storage that runs out refuses writes on one stream, and never breaks
    the server. What is not shared out is for timers, which the server does not let us bound.
    """

    total_bytes: int

    @classmethod
    def of_disk(cls, directory: Path) -> StorageBudget:
        """80 % of the volume that holds `directory`."""
        return cls(shutil.disk_usage(directory).total * 8 // 10)

    def share(self, per_mille: int) -> int:
        """So many thousandths of the whole, in bytes."""
        return self.total_bytes * per_mille // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream. Durations are seconds; `None` sets no limit."""

    name: str
    subjects: tuple[str, ...]
    retention: Literal["limits", "workqueue"] = "limits"
    discard: Literal["new", "old"] = "new"
    max_bytes: int | None = None
    max_age_s: int | None = None
    max_msg_size: int | None = MAX_MESSAGE_BYTES
    max_msgs_per_subject: int | None = None
    write_once: bool = False
    """One message a subject; a second is refused."""
    replaces: bool = False
    """One message a subject; a second replaces it (buckets)."""
    rollup: bool = False
    """A message may remove the earlier ones of its subject."""
    direct: bool = False
    """Any replica may answer reads."""
    republish: tuple[str, str] | None = None
    """Source and destination of what is sent on once it is stored."""
    schedules: bool = False
    message_ttl: bool = False
    marker_ttl_s: int | None = None
    """How long the marker stays that tells of an expired subject; None leaves none."""
    duplicate_window_s: int = DUPLICATE_WINDOW_S
    replicas: Replicas = 1

    def config(self) -> dict[str, Any]:
        """The body of the server's request to create it."""
        config: dict[str, Any] = {
            "name": self.name,
            "subjects": list(self.subjects),
            "storage": "file",
            "retention": self.retention,
            "discard": self.discard,
            "max_bytes": self.max_bytes or -1,
            "max_age": (self.max_age_s or 0) * SECOND_NS,
            "max_msg_size": self.max_msg_size or -1,
            "max_msgs": -1,
            "max_consumers": -1,
            "max_msgs_per_subject": 1
            if self.write_once or self.replaces
            else self.max_msgs_per_subject or -1,
            "discard_new_per_subject": self.write_once,
            "duplicate_window": self.duplicate_window_s * SECOND_NS,
            "allow_direct": self.direct,
            "allow_msg_schedules": self.schedules,
            "allow_msg_ttl": self.message_ttl,
            "allow_rollup_hdrs": self.rollup or self.schedules,
            "deny_delete": self.replaces,
            "num_replicas": self.replicas,
        }
        if self.republish:
            config["republish"] = {"src": self.republish[0], "dest": self.republish[1]}
        if self.marker_ttl_s:
            config["subject_delete_marker_ttl"] = self.marker_ttl_s * SECOND_NS
        return config


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A durable pull consumer. It redelivers for ever; poison is counted in the log."""

    stream: str
    durable: str
    filter: str
    ack_wait_s: int = ACK_WAIT_S
    replicas: Replicas = 1

    def config(self) -> dict[str, Any]:
        """The body of the server's request to create it. A `backoff` would override `ack_wait`."""
        return {
            "durable_name": self.durable,
            "filter_subject": self.filter,
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "replay_policy": "instant",
            "ack_wait": self.ack_wait_s * SECOND_NS,
            "max_deliver": -1,
            "max_ack_pending": MAX_ACK_PENDING,
            "max_waiting": 512,
            "num_replicas": self.replicas,
        }
