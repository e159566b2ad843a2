"""`banksman dead`: list, show, replay and remove dead letters."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

from banksman.bus import dead
from banksman.bus.connection import Bus
from banksman.bus.names import DEAD
from banksman.cli import output
from banksman.cli.operator.streams import broker_access
from banksman.cli.output import Exit

SHOWN_BYTES = 64 * 1024
"""Bytes of a payload that are shown on a terminal; `--json` prints all."""


def ls(data_dir: Path | None, *, stream: str | None, as_json: bool) -> Exit:
    """List the dead letters. The exit code is a warning if there are dead letters other than notes."""

    async def read(bus: Bus) -> list[str]:
        origins: list[str] = []
        async for stored in dead.dead_letters(bus, stream=stream):
            letter = stored.letter
            origins.append(letter.stream)
            if as_json:
                output.print_json({"id": stored.stream_seq, **letter.model_dump(mode="json")})
            else:
                size = len(base64.b64decode(letter.payload_base64))
                output.print_line(
                    f"{stored.stream_seq:>6}  {letter.ts:%Y-%m-%d %H:%M:%S}  {letter.subject}"
                    f"  {size} bytes  {letter.reason}"
                )
        return origins

    origins = asyncio.run(broker_access(data_dir).in_app(read, needs=(DEAD,)))
    if not origins and not as_json:
        output.print_line("no dead letters" if stream is None else f"no dead letters of {stream}")
    return Exit.WARNING if any(origin != dead.NOTES for origin in origins) else Exit.OK


def show(data_dir: Path | None, *, letter: int, as_json: bool) -> Exit:
    """Show one dead letter with its headers and payload.

    Raises:
        NotFound: no such dead letter.
    """
    found = asyncio.run(
        broker_access(data_dir).in_app(lambda bus: dead.read_dead_letter(bus, letter), needs=(DEAD,))
    )
    if as_json:
        output.print_json({"id": letter, **found.model_dump(mode="json")})
        return Exit.OK
    payload = base64.b64decode(found.payload_base64)
    output.print_line(f"subject  {found.subject}")
    output.print_line(f"origin   {found.stream}, message {found.stream_seq}")
    output.print_line(f"stored   {found.ts:%Y-%m-%d %H:%M:%S}")
    output.print_line(f"reason   {found.reason}")
    for name, value in sorted(found.headers.items()):
        output.print_line(f"header   {name}: {value}")
    output.print_line(f"payload  {len(payload)} bytes")
    output.print_line(_readable(payload[:SHOWN_BYTES]))
    if len(payload) > SHOWN_BYTES:
        output.print_line(f"… {len(payload) - SHOWN_BYTES} more bytes; --json prints all")
    return Exit.OK


def replay(data_dir: Path | None, *, letter: int, as_json: bool) -> Exit:
    """Publish a dead letter on its subject again.

    Raises:
        NotFound: no such dead letter.
    """
    replayed = asyncio.run(
        broker_access(data_dir).in_app(lambda bus: dead.replay(bus, letter), needs=(DEAD,))
    )
    if as_json:
        output.print_json({"replayed": letter, "subject": replayed.subject})
    else:
        output.print_line(f"published again on {replayed.subject}")
    return Exit.OK


def rm(data_dir: Path | None, *, letter: int, as_json: bool) -> Exit:
    """Remove a dead letter permanently.

    Raises:
        NotFound: no such dead letter.
    """
    broker = broker_access(data_dir)
    removed = asyncio.run(broker.in_app(lambda bus: dead.remove(bus, letter), needs=(DEAD,)))
    if as_json:
        output.print_json({"removed": letter, "subject": removed.subject})
    else:
        output.print_line(f"removed dead letter {letter}, which was published on {removed.subject}")
    return Exit.OK


def _readable(payload: bytes) -> str:
    """Return the payload as text, with characters escaped that could control a terminal."""
    text = payload.decode("utf-8", "backslashreplace")
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
        for character in text
    )
