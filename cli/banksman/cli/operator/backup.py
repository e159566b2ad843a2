"""`banksman backup` and `banksman restore`: snapshots of all streams in a directory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from banksman.bus import names
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.cli import output
from banksman.cli.operator.recovery import LogRecovery
from banksman.cli.operator.stream_snapshots import CHUNK_BYTES, delete_stream, restore_stream, stream_snapshot
from banksman.cli.operator.streams import broker_access
from banksman.cli.output import Exit
from banksman.contracts import subjects
from banksman.contracts.errors import BadInput, BanksmanError, Conflict, Unavailable
from banksman.deployment import users
from banksman.deployment.streams import provision, stream_info
from banksman.deployment.topology import Topology
from banksman.log_integrity.check import conversations
from banksman.runtime.http_get import http_get

MANIFEST = "manifest.json"
_FORMAT = 1
_BEFORE_THE_LOGS = (
    names.RUNS,
    names.WORKFLOWS,
    names.TIMERS,
    names.APPROVALS,
    names.RESULTS,
    names.DEAD,
    names.object_stream(names.SNAPSHOTS),
)
"""Streams that are saved before the logs. A message is removed from these only after its effect is in a log,
so the backup holds the message, its effect, or both."""
DERIVED_FROM_LOGS = (names.kv_stream(names.HEADS), names.kv_stream(names.DAMAGED))
"""Streams about the state of the stored logs. A restore replaces the logs, so these start empty."""
NOT_BACKED_UP = (names.kv_stream(names.RUNNERS), names.ADVISORIES, *DERIVED_FROM_LOGS)
"""Streams that a backup omits: derived ones, leases (they expire within seconds), the server's advisories."""


class SavedStream(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    account: str
    name: str
    file: str
    bytes: int
    sha256: str
    messages: int
    config: dict[str, Any]
    state: dict[str, Any]
    """State of the stream at the snapshot; the restore request must contain it."""


class Manifest(BaseModel):
    """Content of a backup. It is written last: a backup without it is incomplete."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = _FORMAT
    made_by: str
    began_at: datetime
    """Everything that was accepted before this time is in the backup."""
    ended_at: datetime
    streams: tuple[SavedStream, ...]


def backup(data_dir: Path | None, directory: Path, *, as_json: bool) -> Exit:
    """Save all streams, which may be in use; raise `Conflict` if the directory is not empty."""
    _make_empty(directory)
    began = datetime.now(UTC)
    saved: list[SavedStream] = []

    async def save(bus: Bus, topology: Topology) -> tuple[str, ...]:
        for stage in _stages(topology):
            saved.extend(await _save_all(bus, topology.account, stage, directory))
        return ()

    asyncio.run(broker_access(data_dir).in_each(save))
    manifest = Manifest(
        made_by=version("banksman"), began_at=began, ended_at=datetime.now(UTC), streams=tuple(saved)
    )
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    total = sum(stream.bytes for stream in saved)
    took = (manifest.ended_at - began).total_seconds()
    facts = {"streams": len(saved), "bytes": total, "seconds": took, "directory": str(directory)}
    text = f"{len(saved)} streams, {total:,} bytes in {took:.1f} s: {directory}"
    output.print_result(facts, text, as_json=as_json)
    return Exit.OK


def _stages(topology: Topology) -> list[list[str]]:
    """Return the streams to save in parallel, in order: those before the logs, the logs, the others."""
    wanted = [stream.name for stream in topology.streams if stream.name not in NOT_BACKED_UP]
    before = [name for name in wanted if name in _BEFORE_THE_LOGS]
    logs = [name for name in wanted if name == names.EVENTS]
    return [before, logs, [name for name in wanted if name not in (*before, *logs)]]


def _make_empty(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise Conflict(f"{directory} is not empty: a backup needs a new or empty directory")


async def _save_all(bus: Bus, account: str, streams: Iterable[str], directory: Path) -> list[SavedStream]:
    # The server delays the start of each snapshot by about two seconds; in parallel that is paid once.
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_save(bus, account, name, directory)) for name in streams]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


async def _save(bus: Bus, account: str, name: str, directory: Path) -> SavedStream:
    file = directory / f"{account}-{name}.snapshot"
    digest, size = hashlib.sha256(), 0
    async with stream_snapshot(bus, name) as snapshot:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            async for chunk in snapshot.chunks:
                await asyncio.to_thread(out.write, chunk)
                digest.update(chunk)
                size += len(chunk)
            await asyncio.to_thread(os.fsync, out.fileno())
    return SavedStream(
        account=account,
        name=name,
        file=file.name,
        bytes=size,
        sha256=digest.hexdigest(),
        messages=int(snapshot.state["messages"]),
        config=snapshot.config,
        state=snapshot.state,
    )


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest; raise `BadInput` if it or a file of the backup is missing or altered."""
    try:
        manifest = Manifest.model_validate_json((directory / MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        raise BadInput(str(directory / MANIFEST), None, "the manifest of a complete backup") from error
    for stream in manifest.streams:
        file = directory / stream.file
        digest = hashlib.sha256()
        for chunk in file_chunks(file):
            digest.update(chunk)
        if digest.hexdigest() != stream.sha256:
            raise BadInput(str(file), None, f"{stream.bytes} bytes with SHA-256 {stream.sha256}")
    return manifest


def file_chunks(file: Path) -> Iterator[bytes]:
    """Yield a file in pieces of `CHUNK_BYTES`; raise `BadInput` if it does not exist."""
    if not file.is_file():
        raise BadInput(str(file), None, "the file that the manifest names")
    with file.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            yield chunk


TIMEOUT_S = 5.0
_PROBES = {
    users.GATEWAY: subjects.api("operator", "usage"),
    users.AGENT: subjects.registry("tool", "list"),
    users.WORKFLOWS: subjects.workflow_api("list"),
}
"""A request subject that each running service responds to, on any server of a cluster."""
_SERVICES = (users.GATEWAY, users.AGENT, users.WORKFLOWS, users.TOOL_RUNNER)

_Tally = dict[Literal["conversations", "resumed", "asked"], int]


def restore(data_dir: Path | None, directory: Path, *, force: bool, as_json: bool) -> Exit:
    """Restore a system whose services are stopped.

    Raises:
        BadInput: the directory contains no complete backup.
        Conflict: services are running, or streams hold messages and `force` is not given.
    """
    manifest = read_manifest(directory)
    broker = broker_access(data_dir)

    async def run() -> tuple[_Tally, list[str]]:
        await _refuse_connected(broker.monitoring_url)
        await broker.in_app(_refuse_responding)
        await broker.in_each(lambda bus, topology: _check_empty(bus, topology, force=force))
        await broker.in_each(lambda bus, topology: _restore(bus, topology, manifest, directory))
        return await broker.in_app(_recover)

    tally, broken = asyncio.run(run())
    facts = {"streams": len(manifest.streams), **tally, "broken": broken}
    text = (
        f"{len(manifest.streams)} streams of {manifest.began_at:%Y-%m-%d %H:%M:%S} UTC; "
        f"{tally['conversations']} conversations: {tally['resumed']} runs resume, "
        f"{tally['asked']} approval requests are open"
    )
    output.print_result(facts, text, problems=broken, as_json=as_json)
    return Exit.CRITICAL if broken else Exit.OK


async def _refuse_responding(bus: Bus) -> None:
    """Refuse while services run: they would continue from cached state that the restore replaces."""
    running: list[str] = []
    for service, subject in _PROBES.items():
        try:
            await bus.request(subject, b"{}", timeout_s=TIMEOUT_S)
        except Unavailable as error:
            if error.no_responders:
                continue
        except BanksmanError:
            pass
        running.append(service)
    _refuse(running)


async def _refuse_connected(monitoring_url: str | None) -> None:
    """Refuse while services, tool-runners included, are connected to the monitored server."""
    if monitoring_url is None:
        return
    reply = await http_get(f"{monitoring_url}/connz?limit=100000", timeout_s=TIMEOUT_S)
    try:
        connections = json.loads(reply.body)["connections"] or ()
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable("BANKSMAN_NATS__MONITORING_URL does not list the connections of NATS") from error
    found = {str(one.get("name", "")).split(" ")[0] for one in connections}
    _refuse(sorted(found.intersection(_SERVICES)))


def _refuse(running: list[str]) -> None:
    if running:
        raise Conflict(f"{', '.join(running)} still running: stop all services, and leave NATS running")


async def _check_empty(bus: Bus, topology: Topology, *, force: bool) -> tuple[str, ...]:
    for stream in topology.streams:
        info = await stream_info(bus, stream.name)
        held = 0 if info is None or stream.name in NOT_BACKED_UP else int(info["state"]["messages"])
        if held and not force:
            raise Conflict(f"stream {stream.name} holds {held} messages: --force replaces all streams")
    return ()


async def _restore(bus: Bus, topology: Topology, manifest: Manifest, directory: Path) -> tuple[str, ...]:
    for stream in topology.streams:
        if stream.name in DERIVED_FROM_LOGS and await stream_info(bus, stream.name) is not None:
            await delete_stream(bus, stream.name)
    for saved in manifest.streams:
        if saved.account != topology.account:
            continue
        if await stream_info(bus, saved.name) is not None:
            await delete_stream(bus, saved.name)
        config = {**saved.config, "num_replicas": bus.settings.replicas}
        await restore_stream(bus, config, saved.state, file_chunks(directory / saved.file))
    # New consumers deliver all messages of their streams again; every handler is safe to run twice.
    return await provision(bus, topology)


async def _recover(bus: Bus) -> tuple[_Tally, list[str]]:
    """Recover all conversations; return the counts and a sentence for each log that cannot be read."""
    tally: _Tally = {"conversations": 0, "resumed": 0, "asked": 0}
    broken: list[str] = []
    async with BrokerClock(bus) as clock:
        recovery = LogRecovery(bus, clock)
        async for tenant, conversation_id in conversations(bus):
            try:
                recovered = await recovery.recover(tenant, conversation_id)
            except Conflict:
                raise
            except BanksmanError as error:
                broken.append(f"{tenant}/{conversation_id}: {error}")
                continue
            tally["conversations"] += 1
            tally["resumed"] += recovered.resumed
            tally["asked"] += recovered.reopened
    return tally, broken
