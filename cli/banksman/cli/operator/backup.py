"""`banksman backup` and `banksman restore`: snapshots of all streams in a directory.

Nothing is deleted unless the target can hold the backup.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from banksman.bus import jetstream, names
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call, count_below
from banksman.bus.secrets import TICKETS_KEY
from banksman.bus.storage.kv import Bucket
from banksman.cli import output
from banksman.cli.broker.server import BrokerAccess
from banksman.cli.operator.recovery import LogRecovery
from banksman.cli.operator.stream_snapshots import (
    DERIVED_FROM_LOGS,
    MANIFEST,
    NOT_BACKED_UP,
    Manifest,
    SavedStream,
    delete_stream,
    file_chunks,
    read_manifest,
    restore_stream,
    stream_snapshot,
)
from banksman.cli.operator.streams import broker_access
from banksman.cli.output import Exit
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, Conflict, Unavailable
from banksman.deployment import users
from banksman.deployment.streams import provision, stream_info
from banksman.deployment.topology import Topology
from banksman.runtime.http_get import http_get

_TIMEOUT_S = 5.0
_PROBES = {
    users.GATEWAY: subjects.api("operator", "usage"),
    users.AGENT: subjects.registry("tool", "list"),
    users.WORKFLOWS: subjects.workflow_api("list"),
}
"""A request subject that each running service responds to, on any server of a cluster."""
_SERVICES = (users.GATEWAY, users.AGENT, users.WORKFLOWS, users.TOOL_RUNNER)
_ROOM = "RESTORE-ROOM"
"""The empty stream that reserves the bytes which a restore needs, to learn whether the servers have them."""
_SERVER_VERSION = "_nats.ver"


async def check_stopped(broker: BrokerAccess) -> None:
    """Refuse while services run: they would continue from cached state that the restore replaces."""
    running = await _connected(broker.monitoring_url) | await broker.in_app(_responding)
    if running:
        names_ = ", ".join(sorted(running))
        raise Conflict(f"{names_} still running: stop all services, and leave NATS running")


async def _connected(monitoring_url: str | None) -> set[str]:
    """Return the services, tool-runners included, that are connected to the monitored server."""
    if monitoring_url is None:
        return set()
    reply = await http_get(f"{monitoring_url}/connz?limit=100000", timeout_s=_TIMEOUT_S)
    try:
        connections = json.loads(reply.body)["connections"] or ()
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable("BANKSMAN_NATS__MONITORING_URL does not list the connections of NATS") from error
    return {str(one.get("name", "")).split(" ")[0] for one in connections}.intersection(_SERVICES)


async def _responding(bus: Bus) -> set[str]:
    """Return the services that respond on any server, and tool-runners with a lease."""
    running: set[str] = set()
    for service, subject in _PROBES.items():
        try:
            await bus.request(subject, b"{}", timeout_s=_TIMEOUT_S)
        except Unavailable as error:
            if error.no_responders:
                continue
        except BanksmanError:
            pass
        running.add(service)
    leases = Bucket(bus, names.RUNNERS, BaseModel)
    if await stream_info(bus, leases.stream) is not None and await leases.keys():
        running.add(users.TOOL_RUNNER)
    return running


async def check_empty(bus: Bus, topology: Topology) -> tuple[str, ...]:
    """Refuse streams with messages, except those that an unused system has."""
    for stream in topology.streams:
        info = await stream_info(bus, stream.name)
        held = 0 if info is None or stream.name in NOT_BACKED_UP else int(info["state"]["messages"])
        if held and stream.name == names.kv_stream(names.SECRETS):
            # `banksman streams provision` stores it.
            held -= await count_below(bus, stream.name, names.kv_subject(names.SECRETS, TICKETS_KEY))
        if held:
            raise Conflict(f"stream {stream.name} holds {held} messages: --force replaces all streams")
    return ()


async def check_versions(broker: BrokerAccess, manifest: Manifest) -> None:
    """Refuse a backup of a later version of Banksman, or of NATS than that of any server."""
    _check_version("Banksman", manifest.made_by, version("banksman"))
    made_by = max((_saved_version(stream) for stream in manifest.streams), key=_release, default="0")
    for url, found in (await broker.server_versions()).items():
        _check_version(f"nats-server of {url}", made_by, found)


def _check_version(what: str, made_by: str, found: str) -> None:
    if _release(found) < _release(made_by):
        raise Conflict(f"{what} is version {found}: the backup needs {made_by} or later")


def _saved_version(stream: SavedStream) -> str:
    metadata: dict[str, str] = stream.config.get("metadata") or {}
    return metadata.get(_SERVER_VERSION, "0")


def _release(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"[0-9]+", text)[:2])


def target_config(topology: Topology, saved: SavedStream) -> dict[str, Any]:
    """Return the configuration of a restored stream, with the limits and replicas of the target."""
    config = {**saved.config, "num_replicas": topology.streams[0].replicas}
    for stream in topology.streams:
        if stream.name == saved.name:
            config |= stream.config()
    return config


async def check_room(bus: Bus, topology: Topology, manifest: Manifest) -> tuple[str, ...]:
    """Refuse a backup that the streams of the target or its servers cannot hold."""
    needed = 0
    for saved in manifest.streams:
        if saved.account != topology.account:
            continue
        most, held = int(target_config(topology, saved)["max_bytes"]), int(saved.state["bytes"])
        if 0 < most < held:
            raise Conflict(
                f"stream {saved.name} of the backup has {held:,} bytes, and here at most {most:,}: give the "
                "servers more (max_file_store) and set BANKSMAN_OPERATOR__STORAGE_BYTES to the same value"
            )
        info = await stream_info(bus, saved.name)
        needed += max(most, 0) - (0 if info is None else max(int(info["config"]["max_bytes"]), 0))
    if needed > 0:
        await _reserve(bus, needed, topology.streams[0].replicas)
    return ()


async def _reserve(bus: Bus, needed: int, replicas: int) -> None:
    """Reserve bytes on as many servers as store a stream, and release them; raise `Conflict` on failure."""
    config = {
        "name": _ROOM,
        "subjects": [_ROOM],
        "storage": "file",
        "max_bytes": needed,
        "num_replicas": replicas,
    }
    if await stream_info(bus, _ROOM) is not None:
        # A check that was interrupted left it.
        await delete_stream(bus, _ROOM)
    try:
        await call(bus, names.api("STREAM.CREATE", _ROOM), config)
    except BanksmanError as error:
        reason = f"the servers have no room for {needed:,} more bytes of streams with {replicas} replicas"
        raise Conflict(
            f"{reason}: {error}. Set BANKSMAN_OPERATOR__STORAGE_BYTES to the max_file_store of "
            "the servers, and start all of them"
        ) from error
    await delete_stream(bus, _ROOM)


async def check_disk(monitoring_url: str | None, manifest: Manifest) -> None:
    """Refuse a backup for which the volume of the server has no room, if it is on this machine."""
    if monitoring_url is None:
        return
    reply = await http_get(f"{monitoring_url}/jsz?config=true", timeout_s=_TIMEOUT_S)
    try:
        found = json.loads(reply.body)
        free = shutil.disk_usage(found["config"]["store_dir"]).free + int(found["storage"])
    except (OSError, KeyError, TypeError, ValueError):
        return
    # The server stores each snapshot before it unpacks it.
    snapshots = max((stream.bytes for stream in manifest.streams), default=0)
    needed = snapshots + sum(int(stream.state["bytes"]) for stream in manifest.streams)
    if free < needed:
        raise Conflict(
            f"the volume of NATS has no room: the backup needs {needed:,} bytes, {free:,} are free"
        )


async def _mark(bus: Bus) -> None:
    """Let services wait until the restore is complete, also if it is interrupted."""
    config = {"name": names.RESTORE, "subjects": [names.RESTORE], "max_bytes": 1, "discard": "new"}
    await call(
        bus, names.api("STREAM.CREATE", names.RESTORE), {**config, "num_replicas": bus.settings.replicas}
    )


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


def restore(data_dir: Path | None, directory: Path, *, force: bool, as_json: bool) -> Exit:
    """Restore a system whose services are stopped.

    Nothing is changed before all checks have succeeded.

    Raises:
        BadInput: the directory contains no complete backup.
        Conflict: services are running, streams hold messages and `force` is not given, a version is too old,
            or the target lacks room.
    """
    manifest = read_manifest(directory)
    broker = broker_access(data_dir)

    async def run() -> tuple[_Tally, list[str]]:
        await check_stopped(broker)
        if not force:
            await broker.in_each(check_empty)
        await check_versions(broker, manifest)
        await broker.in_each(lambda bus, topology: check_room(bus, topology, manifest))
        await check_disk(broker.monitoring_url, manifest)
        await broker.in_app(_mark)
        await broker.in_each(lambda bus, topology: _restore(bus, topology, manifest, directory))
        recovered = await broker.in_app(_recover)
        await broker.in_app(lambda bus: delete_stream(bus, names.RESTORE))
        return recovered

    tally, broken = asyncio.run(run())
    facts = {"streams": len(manifest.streams), **tally, "broken": broken}
    text = (
        f"{len(manifest.streams)} streams of {manifest.began_at:%Y-%m-%d %H:%M:%S} UTC; "
        f"{tally['conversations']} conversations: {tally['resumed']} runs resume, "
        f"{tally['asked']} approval requests are open"
    )
    output.print_result(facts, text, problems=broken, as_json=as_json)
    return Exit.CRITICAL if broken else Exit.OK


async def _restore(bus: Bus, topology: Topology, manifest: Manifest, directory: Path) -> tuple[str, ...]:
    for stream in topology.streams:
        if stream.name in DERIVED_FROM_LOGS and await stream_info(bus, stream.name) is not None:
            await delete_stream(bus, stream.name)
    for saved in manifest.streams:
        if saved.account != topology.account:
            continue
        if await stream_info(bus, saved.name) is not None:
            await delete_stream(bus, saved.name)
        config = target_config(topology, saved)
        await restore_stream(bus, config, saved.state, file_chunks(directory / saved.file))
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
