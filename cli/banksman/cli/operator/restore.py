"""`banksman restore`: restore all streams from a backup, and recover the conversations in them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Literal

from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.cli import output
from banksman.cli.operator.access import broker_access
from banksman.cli.operator.backup import (
    DERIVED_FROM_LOGS,
    NOT_BACKED_UP,
    Manifest,
    file_chunks,
    read_manifest,
)
from banksman.cli.operator.recovery import LogRecovery
from banksman.cli.operator.stream_snapshots import delete_stream, restore_stream
from banksman.cli.output import Exit
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, Conflict, Unavailable
from banksman.deployment import users
from banksman.deployment.streams import provision, stream_info
from banksman.deployment.topology import Topology
from banksman.log_integrity.check import conversations
from banksman.runtime.http_get import http_get

TIMEOUT_S = 5.0
"""Seconds for a service or the monitoring endpoint to respond."""
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
        SnapshotFailed, ApiError: the server refuses a stream.
        Unavailable: NATS cannot be reached.
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
    if as_json:
        output.print_json({"streams": len(manifest.streams), **tally, "broken": broken})
    else:
        output.print_line(
            f"{len(manifest.streams)} streams of {manifest.began_at:%Y-%m-%d %H:%M:%S} UTC; "
            f"{tally['conversations']} conversations: {tally['resumed']} runs resume, "
            f"{tally['asked']} approval requests are open"
        )
        for line in broken:
            output.print_error(line)
    return Exit.CRITICAL if broken else Exit.OK


async def _refuse_responding(bus: Bus) -> None:
    """Refuse while services run: they would continue from cached state that the restore replaces.

    Raises:
        Conflict: a service responds.
    """
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
    """Refuse while services, tool-runners included, are connected to the monitored server.

    Raises:
        Conflict: a service is connected.
    """
    if monitoring_url is None:
        return
    reply = await http_get(f"{monitoring_url}/connz?limit=100000", timeout_s=TIMEOUT_S)
    connections = json.loads(reply.body).get("connections") or ()
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
