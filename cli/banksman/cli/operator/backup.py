"""`banksman backup` and `banksman restore`: every stream as it was at one moment, in a directory."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from banksman.bus import names
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.cli import output
from banksman.cli.operator.operate import Operator
from banksman.cli.operator.restored import Revival
from banksman.cli.operator.stream_copies import CHUNK_BYTES, copied, delete_stream, restore_stream
from banksman.cli.output import Exit
from banksman.contracts import subjects
from banksman.contracts.errors import BadInput, BanksmanError, Conflict, Unavailable
from banksman.deployment import users
from banksman.deployment.streams import provision, stream_info
from banksman.deployment.topology import Topology
from banksman.log_integrity.check import conversations

MANIFEST = "manifest.json"
MONITORING_TIMEOUT_S = 5.0
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
"""Copied before the logs: what is taken from these is in a log first, so it is in one copy or the other."""
_OF_THESE_LOGS = (names.kv_stream(names.HEADS), names.kv_stream(names.DAMAGED))
"""What is known of the logs that are there. After a restore others are, of which it is begun anew."""
_NOT_COPIED = (names.kv_stream(names.RUNNERS), names.ADVISORIES, *_OF_THESE_LOGS)
"""Leases of three seconds besides, and what the server says of itself."""
_ANSWERS = {
    users.GATEWAY: subjects.api("operator", "usage"),
    users.AGENT: subjects.registry("tool", "list"),
    users.WORKFLOWS: subjects.workflow_api("list"),
}
"""What each service answers to wherever it is connected."""
_SERVICES = (users.GATEWAY, users.AGENT, users.WORKFLOWS, users.TOOL_RUNNER)


class SavedStream(BaseModel):
    """One stream of a backup."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    account: str
    name: str
    file: str
    """Beside the manifest, in the server's own form."""
    bytes: int
    sha256: str
    messages: int
    config: dict[str, Any]
    state: dict[str, Any]
    """What the server said of it, to be told to the one that takes it back."""


class Manifest(BaseModel):
    """What a backup holds. Written last: without it a backup is not whole."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    format: Literal[1] = _FORMAT
    made_by: str
    """The version of Banksman."""
    began_at: datetime
    """What was accepted before is in the backup."""
    ended_at: datetime
    streams: tuple[SavedStream, ...]


def backup(data_dir: Path | None, directory: Path, *, as_json: bool) -> Exit:
    """Copy every stream of a system that may go on working.

    Raises:
        Conflict: the directory holds something.
        CopyBroken, ApiError: a stream is damaged.
        Unavailable: NATS cannot be reached.
    """
    _make_empty(directory)
    began = datetime.now(UTC)
    saved: list[SavedStream] = []

    async def save(bus: Bus, topology: Topology) -> tuple[str, ...]:
        for stage in _stages(topology):
            saved.extend(await _save_all(bus, topology.account, stage, directory))
        return ()

    asyncio.run(Operator(data_dir).in_each(save))
    manifest = Manifest(
        made_by=version("banksman"), began_at=began, ended_at=datetime.now(UTC), streams=tuple(saved)
    )
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    total = sum(stream.bytes for stream in saved)
    took = (manifest.ended_at - began).total_seconds()
    if as_json:
        output.emit({"streams": len(saved), "bytes": total, "seconds": took, "directory": str(directory)})
    else:
        output.say(f"{len(saved)} streams, {total:,} bytes in {took:.1f} s: {directory}")
    return Exit.OK


def restore(data_dir: Path | None, directory: Path, *, force: bool, as_json: bool) -> Exit:
    """Put a system whose services do not run back to what a backup holds.

    Raises:
        BadInput: the directory holds no whole backup.
        Conflict: services run, or there is something already and `force` is not given.
        CopyBroken, ApiError: the server does not take it.
        Unavailable: NATS cannot be reached.
    """
    manifest = _checked(directory)
    operator = Operator(data_dir)

    async def bring_back() -> tuple[_Tally, list[str]]:
        await _refuse_connected(operator.monitoring_url)
        await operator.in_app(_refuse_running)
        await operator.in_each(lambda bus, topology: _check_empty(bus, topology, force=force))
        await operator.in_each(lambda bus, topology: _bring_back(bus, topology, manifest, directory))
        return await operator.in_app(_revive)

    tally, broken = asyncio.run(bring_back())
    if as_json:
        output.emit({"streams": len(manifest.streams), **tally, "broken": broken})
    else:
        output.say(
            f"{len(manifest.streams)} streams of {manifest.began_at:%Y-%m-%d %H:%M:%S} UTC; "
            f"{tally['conversations']} conversations: {tally['resumed']} runs go on, "
            f"{tally['asked']} questions are open"
        )
        for line in broken:
            output.complain(line)
    return Exit.CRITICAL if broken else Exit.OK


def _stages(topology: Topology) -> list[list[str]]:
    """Streams that are copied side by side: what comes before the logs, the logs, what comes after."""
    wanted = [stream.name for stream in topology.streams if stream.name not in _NOT_COPIED]
    before = [name for name in wanted if name in _BEFORE_THE_LOGS]
    logs = [name for name in wanted if name == names.EVENTS]
    return [before, logs, [name for name in wanted if name not in (*before, *logs)]]


def _make_empty(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise Conflict(f"{directory} holds something: a backup wants a directory of its own")


async def _save_all(bus: Bus, account: str, streams: Iterable[str], directory: Path) -> list[SavedStream]:
    # The server lets each copy wait for two seconds before it begins.
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_save(bus, account, name, directory)) for name in streams]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


async def _save(bus: Bus, account: str, name: str, directory: Path) -> SavedStream:
    file = directory / f"{account}-{name}.snapshot"
    digest, size = hashlib.sha256(), 0
    async with copied(bus, name) as copy:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            async for chunk in copy.chunks:
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
        messages=int(copy.state["messages"]),
        config=copy.config,
        state=copy.state,
    )


def _checked(directory: Path) -> Manifest:
    """The manifest of a backup whose files are what was written."""
    try:
        manifest = Manifest.model_validate_json((directory / MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        raise BadInput(str(directory / MANIFEST), None, "the manifest of a whole backup") from error
    for stream in manifest.streams:
        file = directory / stream.file
        digest = hashlib.sha256()
        for chunk in _chunks(file):
            digest.update(chunk)
        if digest.hexdigest() != stream.sha256:
            raise BadInput(str(file), None, f"{stream.bytes} bytes with SHA-256 {stream.sha256}")
    return manifest


def _chunks(file: Path) -> Iterator[bytes]:
    if not file.is_file():
        raise BadInput(str(file), None, "the file that the manifest names")
    with file.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            yield chunk


async def _refuse_running(bus: Bus) -> None:
    """Services that run would go on from what they know, which is no more. Any server of a cluster has them.

    Raises:
        Conflict: one answers.
    """
    running: list[str] = []
    for service, subject in _ANSWERS.items():
        try:
            await bus.request(subject, b"{}", timeout_s=MONITORING_TIMEOUT_S)
        except Unavailable as silence:
            if silence.no_responders:
                continue
        except BanksmanError:
            pass
        running.append(service)
    if running:
        raise Conflict(f"{', '.join(running)} still run: end all services, and leave NATS running")


async def _refuse_connected(monitoring_url: str | None) -> None:
    """Likewise all that are connected to the server that tells of itself, tool-runners too."""
    if monitoring_url is None:
        return
    async with httpx.AsyncClient(timeout=MONITORING_TIMEOUT_S, trust_env=False) as http:
        answer = await http.get(f"{monitoring_url}/connz", params={"limit": 100_000})
    found = {str(one.get("name", "")).split(" ")[0] for one in answer.json().get("connections") or ()}
    if running := sorted(found.intersection(_SERVICES)):
        raise Conflict(f"{', '.join(running)} still run: end all services, and leave NATS running")


async def _check_empty(bus: Bus, topology: Topology, *, force: bool) -> tuple[str, ...]:
    for stream in topology.streams:
        info = await stream_info(bus, stream.name)
        held = 0 if info is None or stream.name in _NOT_COPIED else int(info["state"]["messages"])
        if held and not force:
            raise Conflict(f"stream {stream.name} holds {held} messages: --force replaces all streams")
    return ()


async def _bring_back(bus: Bus, topology: Topology, manifest: Manifest, directory: Path) -> tuple[str, ...]:
    for stream in topology.streams:
        if stream.name in _OF_THESE_LOGS and await stream_info(bus, stream.name) is not None:
            await delete_stream(bus, stream.name)
    for saved in manifest.streams:
        if saved.account != topology.account:
            continue
        if await stream_info(bus, saved.name) is not None:
            await delete_stream(bus, saved.name)
        config = {**saved.config, "num_replicas": bus.settings.replicas}
        await restore_stream(bus, config, saved.state, _chunks(directory / saved.file))
    # Consumers are made anew: they deliver all that their streams hold, and every handler may run twice.
    return await provision(bus, topology)


_Tally = dict[Literal["conversations", "resumed", "asked"], int]


async def _revive(bus: Bus) -> tuple[_Tally, list[str]]:
    async with BrokerClock(bus) as clock:
        return await _revived(bus, Revival(bus, clock))


async def _revived(bus: Bus, revival: Revival) -> tuple[_Tally, list[str]]:
    tally: _Tally = {"conversations": 0, "resumed": 0, "asked": 0}
    broken: list[str] = []
    async for tenant, conversation_id in conversations(bus):
        try:
            revived = await revival.revive(tenant, conversation_id)
        except Conflict:
            raise
        except BanksmanError as error:
            broken.append(f"{tenant}/{conversation_id}: {error}")
            continue
        tally["conversations"] += 1
        tally["resumed"] += revived.resumed
        tally["asked"] += revived.asked
    return tally, broken
