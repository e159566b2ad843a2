"""`banksman backup` and `banksman restore`: snapshots of all streams in a directory."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from banksman.bus import jetstream, names
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.cli import output
from banksman.cli.operator import restore_checks, stream_snapshots
from banksman.cli.operator.recovery import LogRecovery
from banksman.cli.operator.stream_snapshots import delete_stream, restore_stream, stream_snapshot
from banksman.cli.operator.streams import broker_access
from banksman.cli.output import Exit
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, Conflict
from banksman.deployment.streams import provision, stream_info
from banksman.deployment.topology import Topology

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
_Tally = dict[Literal["conversations", "resumed", "asked"], int]


def backup(data_dir: Path | None, directory: Path, *, as_json: bool) -> Exit:
    """Save all streams, which may be in use; raise `Conflict` if the directory is not empty."""
    _make_empty(directory)
    began = datetime.now(UTC)
    saved: list[stream_snapshots.SavedStream] = []

    async def save(bus: Bus, topology: Topology) -> tuple[str, ...]:
        for stage in _stages(topology):
            saved.extend(await _save_all(bus, topology.account, stage, directory))
        return ()

    asyncio.run(broker_access(data_dir).in_each(save))
    manifest = stream_snapshots.Manifest(
        made_by=version("banksman"), began_at=began, ended_at=datetime.now(UTC), streams=tuple(saved)
    )
    (directory / stream_snapshots.MANIFEST).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    total = sum(stream.bytes for stream in saved)
    took = (manifest.ended_at - began).total_seconds()
    facts = {"streams": len(saved), "bytes": total, "seconds": took, "directory": str(directory)}
    text = f"{len(saved)} streams, {total:,} bytes in {took:.1f} s: {directory}"
    output.print_result(facts, text, as_json=as_json)
    return Exit.OK


def _stages(topology: Topology) -> list[list[str]]:
    """Return the streams to save in parallel, in order: those before the logs, the logs, the others."""
    wanted = [stream.name for stream in topology.streams if stream.name not in stream_snapshots.NOT_BACKED_UP]
    before = [name for name in wanted if name in _BEFORE_THE_LOGS]
    logs = [name for name in wanted if name == names.EVENTS]
    return [before, logs, [name for name in wanted if name not in (*before, *logs)]]


def _make_empty(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise Conflict(f"{directory} is not empty: a backup needs a new or empty directory")


async def _save_all(
    bus: Bus, account: str, streams: Iterable[str], directory: Path
) -> list[stream_snapshots.SavedStream]:
    # The server delays the start of each snapshot by about two seconds; in parallel that is paid once.
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_save(bus, account, name, directory)) for name in streams]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


async def _save(bus: Bus, account: str, name: str, directory: Path) -> stream_snapshots.SavedStream:
    file = directory / f"{account}-{name}.snapshot"
    digest, size = hashlib.sha256(), 0
    async with stream_snapshot(bus, name) as snapshot:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            async for chunk in snapshot.chunks:
                await asyncio.to_thread(out.write, chunk)
                digest.update(chunk)
                size += len(chunk)
            await asyncio.to_thread(os.fsync, out.fileno())
    return stream_snapshots.SavedStream(
        account=account,
        name=name,
        file=file.name,
        bytes=size,
        sha256=digest.hexdigest(),
        messages=int(snapshot.state["messages"]),
        config=snapshot.config,
        state=snapshot.state,
    )


def restore(data_dir: Path | None, directory: Path, *, force: bool, as_json: bool) -> Exit:
    """Restore a system whose services are stopped.

    Nothing is changed before all checks have succeeded.

    Raises:
        BadInput: the directory contains no complete backup.
        Conflict: services are running, streams hold messages and `force` is not given, a version is too old,
            or the target lacks room.
    """
    manifest = stream_snapshots.read_manifest(directory)
    broker = broker_access(data_dir)

    async def run() -> tuple[_Tally, list[str]]:
        await restore_checks.check_stopped(broker)
        if not force:
            await broker.in_each(restore_checks.check_empty)
        await restore_checks.check_versions(broker, manifest)
        await broker.in_each(lambda bus, topology: restore_checks.check_room(bus, topology, manifest))
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


async def _restore(
    bus: Bus, topology: Topology, manifest: stream_snapshots.Manifest, directory: Path
) -> tuple[str, ...]:
    for stream in topology.streams:
        if (
            stream.name in stream_snapshots.DERIVED_FROM_LOGS
            and await stream_info(bus, stream.name) is not None
        ):
            await delete_stream(bus, stream.name)
    for saved in manifest.streams:
        if saved.account != topology.account:
            continue
        if await stream_info(bus, saved.name) is not None:
            await delete_stream(bus, saved.name)
        config = restore_checks.target_config(topology, saved)
        await restore_stream(bus, config, saved.state, stream_snapshots.file_chunks(directory / saved.file))
    # New consumers deliver all messages of their streams again; every handler is safe to run twice.
    return await provision(bus, topology)


async def _recover(bus: Bus) -> tuple[_Tally, list[str]]:
    """Recover all conversations; return the counts and a sentence for each log that cannot be read."""
    tally: _Tally = {"conversations": 0, "resumed": 0, "asked": 0}
    broken: list[str] = []
    async with BrokerClock(bus) as clock:
        recovery = LogRecovery(bus, clock)
        async for subject, _ in jetstream.subjects_in(bus, names.EVENTS, subjects.all_of("conversation")):
            _, tenant, conversation_id = subject.split(".")
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
