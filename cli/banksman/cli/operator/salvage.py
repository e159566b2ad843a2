"""`banksman salvage`: repair the files of a stopped nats-server, and list the messages that are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from banksman.bus.names import EVENTS
from banksman.cli import output
from banksman.cli.broker.salvage import LIBRARY, REMEDY, DamagedPart, Salvaged, is_available
from banksman.cli.broker.salvage import salvage as salvage_files
from banksman.cli.broker.store import rebuild_states, remove_indexes
from banksman.cli.output import Exit
from banksman.contracts.errors import BadInput, NotReady


def salvage(store: Path, *, as_json: bool) -> Exit:
    """Prepare a store as `banksman up` and `banksman nats` do before each start; the server must not run.

    Returns:
        `WARNING` if messages are lost.

    Raises:
        BadInput: the directory is not the `store_dir` of a nats-server.
        NotReady: the library that computes checksums is not installed.
    """
    if not (store / "jetstream").is_dir():
        raise BadInput("directory", str(store), "the `store_dir` of a nats-server")
    if not is_available():
        raise NotReady(f"{LIBRARY} is not installed: {REMEDY}")
    remove_indexes(store)
    found = salvage_files(store)
    rebuilt = rebuild_states(store)
    if as_json:
        for one in found:
            output.print_json(_as_json(one))
        return Exit.WARNING if found else Exit.OK
    for one in found:
        output.print_line(str(one))
        for damage in one.damages:
            if name := _conversation(one, damage):
                output.print_line(f"{name}: lost {damage.messages}")
    for line in rebuilt or ([] if found else ["no message is damaged"]):
        output.print_line(line)
    return Exit.WARNING if found else Exit.OK


def _as_json(salvaged: Salvaged) -> dict[str, Any]:
    return {
        "account": salvaged.account,
        "stream": salvaged.stream,
        "file": salvaged.file,
        "original": salvaged.original,
        "lost": [
            {
                "first_seq": damage.first_seq,
                "last_seq": damage.last_seq,
                "subject": damage.subject,
                "conversation": _conversation(salvaged, damage),
            }
            for damage in salvaged.damages
        ],
    }


def _conversation(salvaged: Salvaged, damage: DamagedPart) -> str | None:
    """Return `TENANT/CONVERSATION` of a damaged commit, if its subject can be read."""
    kind, *names = (damage.subject or "").split(".")
    return (
        "/".join(names) if salvaged.stream == EVENTS and kind == "conversation" and len(names) == 2 else None
    )
