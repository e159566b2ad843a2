"""Declarations of streams and consumers with all their settings, and the requests that create them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from banksman.bus.settings import Replicas

SECOND_NS = 1_000_000_000
MAX_MESSAGE_BYTES = 1024 * 1024 - 16 * 1024
"""Maximum bytes of a stored message with its headers. It stays below `max_payload`, so that the message fits
into a dead letter, which adds headers."""
DUPLICATE_WINDOW_S = 600
ACK_WAIT_S = 3
MAX_ACK_PENDING = 10_000


@dataclass(frozen=True, slots=True, order=True)
class StorageBudget:
    """Bytes for all streams together.

    Each stream reserves a share, so a full stream refuses writes and cannot exhaust the server's storage. The
    unassigned rest is for timers, because the server does not allow a limit on streams with schedules.
    """

    total_bytes: int

    @classmethod
    def of_disk(cls, directory: Path) -> StorageBudget:
        """Return 80 % of the volume that holds `directory`."""
        return cls(shutil.disk_usage(directory).total * 8 // 10)

    def share(self, per_mille: int) -> int:
        """Return this many thousandths of the budget, in bytes."""
        return self.total_bytes * per_mille // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """A stream. Durations are in seconds; None sets no limit."""

    name: str
    subjects: tuple[str, ...]
    retention: Literal["limits", "workqueue"] = "limits"
    discard: Literal["new", "old"] = "new"
    max_bytes: int | None = None
    max_age_s: int | None = None
    max_msg_size: int | None = MAX_MESSAGE_BYTES
    max_msgs_per_subject: int | None = None
    write_once: bool = False
    """One message per subject; a second one is refused."""
    replaces: bool = False
    """One message per subject; a second one replaces it (buckets)."""
    append_only: bool = False
    """Whether the server refuses the deletion of single messages."""
    rollup: bool = False
    """Whether a message may remove earlier messages of its subject."""
    direct: bool = False
    """Whether any replica may serve reads."""
    republish: tuple[str, str] | None = None
    """Source and destination subject of the republish that follows each store."""
    schedules: bool = False
    message_ttl: bool = False
    duplicate_window_s: int = DUPLICATE_WINDOW_S
    replicas: Replicas = 1

    @property
    def label(self) -> str:
        return f"stream {self.name}"

    def config(self) -> dict[str, Any]:
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
            "deny_delete": self.replaces or self.append_only,
            # A stream with markers of expired subjects allows rollups, whatever `allow_rollup_hdrs` says.
            "subject_delete_marker_ttl": 0,
            "num_replicas": self.replicas,
        }
        if self.republish:
            config["republish"] = {"src": self.republish[0], "dest": self.republish[1]}
        return config


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """A durable pull consumer with unlimited redelivery. Workers, not the server, limit failed deliveries."""

    stream: str
    durable: str
    filter: str | tuple[str, ...]
    """One subject, or several."""
    ack_wait_s: int = ACK_WAIT_S
    new_only: bool = False
    """Whether it delivers only messages that are stored after its creation."""
    replicas: Replicas = 1

    @property
    def label(self) -> str:
        return f"consumer {self.stream}/{self.durable}"

    def config(self) -> dict[str, Any]:
        """Return the body of the create request. It has no `backoff`, which would override `ack_wait`."""
        return {
            "durable_name": self.durable,
            **(
                {"filter_subject": self.filter}
                if isinstance(self.filter, str)
                else {"filter_subjects": list(self.filter)}
            ),
            "ack_policy": "explicit",
            "deliver_policy": "new" if self.new_only else "all",
            "replay_policy": "instant",
            "ack_wait": self.ack_wait_s * SECOND_NS,
            "max_deliver": -1,
            "max_ack_pending": MAX_ACK_PENDING,
            "max_waiting": 512,
            "num_replicas": self.replicas,
        }
