"""A service of a future version, which writes a field, an event type and a header unknown to this version.

python -m tests.support.chaos.newer agent

Runs beside processes of this version, which must ignore the unknown parts. The version is built before any
module of the services is imported: it replaces bases and classes in the modules that export them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from banksman.contracts import wire

FIELD = "tide"
"""An unknown field in everything that it writes."""
FIELD_VALUE = "only newer versions know"
EVENT_TYPE = "moon.rose"
HEADER = "Banksman-Tide"


class _Stored(wire.Stored):
    tide: str = FIELD_VALUE


class _Wire(wire.Wire):
    tide: str = FIELD_VALUE


def become_newer() -> None:
    """Turn this process into one of a future version."""
    wire.Stored, wire.Wire = _Stored, _Wire
    from banksman.bus import connection
    from banksman.contracts import events
    from banksman.library_internals import nats_client as client
    from banksman.runs import owner

    class Client(client.SafeClient):
        """Adds a header to every message, except to requests to the server itself."""

        async def publish(
            self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
        ) -> None:
            added = headers if subject.startswith("$JS.") else {**(headers or {}), HEADER: "high"}
            await super().publish(subject, payload, reply, added)

    class Draft(owner.Draft):
        """Begins each run with an event of a new type."""

        def add(self, run_id: str | None, bodies: Iterable[Any]) -> None:
            for body in bodies:
                super().add(run_id, (body,))
                if isinstance(body, events.RunStarted):
                    super().add(
                        run_id, (events.UnknownEvent.model_validate({"type": EVENT_TYPE, "phase": 1}),)
                    )

    connection.SafeClient = Client
    owner.Draft = Draft


def main() -> None:
    """Start the service in the arguments, as `banksman` does, or the ledger's tool server."""
    become_newer()
    if sys.argv[1] == "ledger":
        from tests.support.chaos import ledger

        ledger.main(Path(sys.argv[2]))
    else:
        from banksman.cli.main import main as banksman

        banksman()


if __name__ == "__main__":
    main()
