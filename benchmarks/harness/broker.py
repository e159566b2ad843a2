"""The message counts of a nats-server, from its monitoring endpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.request import urlopen


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals since the server's start."""

    received: int
    """Messages that clients have sent."""
    sent: int
    """Messages that clients have received."""
    api: int
    """Requests to the JetStream API: streams, consumers, reads by the leader; not direct gets and pulls."""
    received_from: dict[str, int] = field(default_factory=dict[str, int])
    """`received` of the open connections by name; connections of one name are added up."""

    def since(self, before: Counts) -> Counts:
        """Return the difference from `before`."""
        names = {
            name: number - before.received_from.get(name, 0) for name, number in self.received_from.items()
        }
        return Counts(self.received - before.received, self.sent - before.sent, self.api - before.api, names)


def counts(monitoring_url: str) -> Counts:
    """Return the totals of a server."""
    varz, jsz, connz = (_get(monitoring_url, path) for path in ("/varz", "/jsz", "/connz?limit=1024"))
    received_from: dict[str, int] = {}
    for connection in connz["connections"]:
        name = str(connection.get("name") or "other")
        received_from[name] = received_from.get(name, 0) + int(connection["in_msgs"])
    return Counts(varz["in_msgs"], varz["out_msgs"], jsz["api"]["total"], received_from)


def stored_messages(monitoring_url: str) -> int:
    """Return the sum of the last sequences of all streams; every stored message adds one."""
    jsz = _get(monitoring_url, "/jsz?accounts=true&streams=true")
    streams = [stream for account in jsz["account_details"] for stream in account.get("stream_detail", [])]
    return sum(int(stream["state"]["last_seq"]) for stream in streams)


def _get(url: str, path: str) -> dict[str, Any]:
    with urlopen(f"{url}{path}", timeout=10) as response:
        return json.loads(response.read())
