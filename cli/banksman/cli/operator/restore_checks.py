"""The checks before a restore: nothing is deleted unless the target can hold the backup."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel

from banksman.bus import names
from banksman.bus.connection import Bus
from banksman.bus.jetstream import call, count_below
from banksman.bus.secrets import TICKETS_KEY
from banksman.bus.storage.kv import Bucket
from banksman.cli.broker.server import BrokerAccess
from banksman.cli.operator.stream_snapshots import NOT_BACKED_UP, Manifest, SavedStream, delete_stream
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, Conflict, Unavailable
from banksman.deployment import users
from banksman.deployment.streams import stream_info
from banksman.deployment.topology import Topology
from banksman.runtime.http_get import http_get

TIMEOUT_S = 5.0
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
    reply = await http_get(f"{monitoring_url}/connz?limit=100000", timeout_s=TIMEOUT_S)
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
            await bus.request(subject, b"{}", timeout_s=TIMEOUT_S)
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
