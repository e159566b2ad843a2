"""What an operator does with dead letters: list, show, replay, remove."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

from banksman.bus import dead
from banksman.bus.connection import Bus
from banksman.bus.names import DEAD
from banksman.cli import output
from banksman.cli.operator.operate import Operator
from banksman.cli.output import Exit

SHOWN_BYTES = 64 * 1024
"""Of a payload on a terminal; `--json` gives all of it."""


def ls(data_dir: Path | None, *, stream: str | None, as_json: bool) -> Exit:
    """Show the dead letters; a warning when one of them is work that nobody did. Notes are for reading."""

    async def read(bus: Bus) -> list[str]:
        origins: list[str] = []
        async for stored in dead.dead_letters(bus, stream=stream):
            letter = stored.letter
            origins.append(letter.stream)
            if as_json:
                output.emit({"id": stored.stream_seq, **letter.model_dump(mode="json")})
            else:
                size = len(base64.b64decode(letter.payload_base64))
                output.say(
                    f"{stored.stream_seq:>6}  {letter.ts:%Y-%m-%d %H:%M:%S}  {letter.subject}"
                    f"  {size} bytes  {letter.reason}"
                )
        return origins

    origins = asyncio.run(Operator(data_dir).in_app(read, needs=(DEAD,)))
    if not origins and not as_json:
        output.say("no dead letters" if stream is None else f"no dead letters of {stream}")
    return Exit.WARNING if any(origin != dead.NOTES for origin in origins) else Exit.OK


def show(data_dir: Path | None, *, letter: int, as_json: bool) -> Exit:
    """Show one dead letter whole."""
    found = asyncio.run(Operator(data_dir).in_app(lambda bus: dead.dead_letter(bus, letter), needs=(DEAD,)))
    if as_json:
        output.emit({"id": letter, **found.model_dump(mode="json")})
        return Exit.OK
    payload = base64.b64decode(found.payload_base64)
    output.say(f"subject  {found.subject}")
    output.say(f"origin   {found.stream}, message {found.stream_seq}")
    output.say(f"buried   {found.ts:%Y-%m-%d %H:%M:%S}")
    output.say(f"reason   {found.reason}")
    for name, value in sorted(found.headers.items()):
        output.say(f"header   {name}: {value}")
    output.say(f"payload  {len(payload)} bytes")
    output.say(_readable(payload[:SHOWN_BYTES]))
    if len(payload) > SHOWN_BYTES:
        output.say(f"… {len(payload) - SHOWN_BYTES} bytes more: --json gives all")
    return Exit.OK


def replay(data_dir: Path | None, *, letter: int, as_json: bool) -> Exit:
    """Publish a dead letter on its subject again."""
    replayed = asyncio.run(Operator(data_dir).in_app(lambda bus: dead.replay(bus, letter), needs=(DEAD,)))
    if as_json:
        output.emit({"replayed": letter, "subject": replayed.subject})
    else:
        output.say(f"published on {replayed.subject} again")
    return Exit.OK


def rm(data_dir: Path | None, *, letter: int, as_json: bool) -> Exit:
    """Remove a dead letter for good."""
    removed = asyncio.run(Operator(data_dir).in_app(lambda bus: dead.remove(bus, letter), needs=(DEAD,)))
    if as_json:
        output.emit({"removed": letter, "subject": removed.subject})
    else:
        output.say(f"removed {letter}, which came from {removed.subject}")
    return Exit.OK


def _readable(payload: bytes) -> str:
    """The payload as a terminal may show it: what would steer one is escaped."""
    text = payload.decode("utf-8", "backslashreplace")
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
        for character in text
    )
