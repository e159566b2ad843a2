"""How operator commands connect to the broker; `banksman streams` and `banksman dead`."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from banksman.bus import dead
from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.names import DEAD
from banksman.cli import output
from banksman.cli.broker.accounts import seed_file
from banksman.cli.broker.server import BrokerAccess, configured_budget
from banksman.cli.output import Exit
from banksman.cli.settings import DEPLOYED_STORAGE_BYTES, LEAST_STORAGE_BYTES
from banksman.cli.state import DataDir
from banksman.deployment import users
from banksman.deployment.streams import provision, verify
from banksman.deployment.topology import StorageBudget
from banksman.runtime.settings import Section, ServiceSettings, load

T = TypeVar("T")

_CONNECT_TIMEOUT_S = 5
SHOWN_BYTES = 64 * 1024


class OperatorSection(Section):
    """How operator commands reach both accounts, and the storage for all streams."""

    run_nkey_seed_file: Path | None = None
    """Seed of the operator's user in account RUN; None leaves that account out."""
    storage_bytes: int = Field(default=DEPLOYED_STORAGE_BYTES, ge=LEAST_STORAGE_BYTES)
    """Bytes that all streams together may use, for the server and the limits of all streams. `banksman up`
    takes 80 % of the disk without it. More take effect at the next start."""


class OperatorSettings(ServiceSettings):
    nats: NatsSettings = NatsSettings()
    operator: OperatorSection = OperatorSection()


def broker_access(data_dir: Path | None) -> BrokerAccess:
    """Return the access to the system that runs in the data directory, or to the one in the settings."""
    settings = load(OperatorSettings)
    data = DataDir((data_dir or settings.data_dir).resolve())
    running = data.running()
    # An explicit URL wins: a shell in the directory of a local system may administer another one.
    if running is None or "BANKSMAN_NATS__URL" in os.environ:
        budget = StorageBudget(settings.operator.storage_bytes)
        return BrokerAccess(settings.nats, settings.operator.run_nkey_seed_file, budget)
    nats = NatsSettings(
        url=running.nats_url,
        monitoring_url=running.monitoring_url,
        nkey_seed_file=seed_file(data.keys, users.OPERATOR),
        connect_timeout_s=_CONNECT_TIMEOUT_S,
    )
    budget = configured_budget(data.nats_config_file)
    return BrokerAccess(nats, seed_file(data.keys, users.OPERATOR_FILES), budget)


def provision_streams(data_dir: Path | None, *, as_json: bool) -> Exit:
    done = asyncio.run(broker_access(data_dir).in_each(provision))
    _print("done", done, none="nothing to do", as_json=as_json)
    return Exit.OK


def check_streams(data_dir: Path | None, *, as_json: bool) -> Exit:
    findings = asyncio.run(broker_access(data_dir).in_each(verify))
    _print("finding", findings, none="streams are as strong as required", as_json=as_json)
    return Exit.CRITICAL if findings else Exit.OK


def _print(name: str, lines: list[str], *, none: str, as_json: bool) -> None:
    facts = [{name: line} for line in lines]
    output.print_items(facts, lambda one: one[name], none=none, as_json=as_json)


def list_letters(data_dir: Path | None, *, stream: str | None, as_json: bool) -> Exit:
    async def read(bus: Bus) -> list[str]:
        origins: list[str] = []
        async for stored in dead.dead_letters(bus, stream=stream):
            letter = stored.letter
            origins.append(letter.stream)
            size = len(base64.b64decode(letter.payload_base64))
            line = f"{stored.stream_seq:>6}  {letter.ts:%Y-%m-%d %H:%M:%S}  {letter.subject}"
            facts = {"id": stored.stream_seq, **letter.model_dump(mode="json")}
            output.print_result(facts, f"{line}  {size} bytes  {letter.reason}", as_json=as_json)
        return origins

    origins = _with_dead_letters(data_dir, read)
    if not origins and not as_json:
        output.print_line("no dead letters" if stream is None else f"no dead letters of {stream}")
    return Exit.WARNING if any(origin != dead.NOTES for origin in origins) else Exit.OK


def show_letter(data_dir: Path | None, *, letter: int, as_json: bool) -> Exit:
    found = _with_dead_letters(data_dir, lambda bus: dead.read_dead_letter(bus, letter))
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
    output.print_text(_readable(payload[:SHOWN_BYTES]))
    if len(payload) > SHOWN_BYTES:
        output.print_line(f"… {len(payload) - SHOWN_BYTES} more bytes; --json prints all")
    return Exit.OK


def replay_letter(data_dir: Path | None, *, letter: int, as_json: bool) -> Exit:
    replayed = _with_dead_letters(data_dir, lambda bus: dead.replay(bus, letter))
    facts = {"replayed": letter, "subject": replayed.subject}
    output.print_result(facts, f"published again on {replayed.subject}", as_json=as_json)
    return Exit.OK


def remove_letter(data_dir: Path | None, *, letter: int, as_json: bool) -> Exit:
    removed = _with_dead_letters(data_dir, lambda bus: dead.remove(bus, letter))
    text = f"removed dead letter {letter}, which was published on {removed.subject}"
    output.print_result({"removed": letter, "subject": removed.subject}, text, as_json=as_json)
    return Exit.OK


def _with_dead_letters(data_dir: Path | None, act: Callable[[Bus], Awaitable[T]]) -> T:
    return asyncio.run(broker_access(data_dir).in_app(act, needs=(DEAD,)))


def _readable(payload: bytes) -> str:
    return payload.decode("utf-8", "backslashreplace")
