"""`banksman tenants`: list the tenants, and export or delete all data of a tenant."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from banksman.bus.connection import Bus
from banksman.bus.jetstream import subjects_in
from banksman.bus.names import AUDIT, CONVERSATIONS, EVENTS, HEADS, kv_stream
from banksman.bus.publish import record_action
from banksman.cli import output
from banksman.cli.broker.access import BrokerAccess
from banksman.cli.operator import keys as api_keys
from banksman.cli.operator import tenant_removal as removal
from banksman.cli.operator.streams import broker_access
from banksman.cli.operator.tenant_export import TenantExport
from banksman.cli.operator.tenant_removal import PLACES
from banksman.cli.output import Exit, typed
from banksman.contracts.api import AuditEntry
from banksman.contracts.errors import Conflict
from banksman.contracts.ids import check_token, new_id
from banksman.contracts.subjects import ANY
from banksman.deployment.topology import Topology

_NEEDS = (EVENTS, AUDIT, kv_stream(HEADS), kv_stream(CONVERSATIONS))


def ls(data_dir: Path | None, *, as_json: bool) -> Exit:
    """List the tenants that have data on the broker, with the number of their messages by stream."""
    found = asyncio.run(broker_access(data_dir).in_app(_tenants, needs=_NEEDS))
    for tenant, counts in sorted(found.items()):
        if as_json:
            output.print_json({"tenant": tenant, "messages": counts})
        else:
            conversations = counts.get(kv_stream(CONVERSATIONS), 0)
            output.print_line(f"{tenant:<24} {conversations} conversations, {sum(counts.values())} messages")
    if not found and not as_json:
        output.print_line("no tenants")
    return Exit.OK


def delete(data_dir: Path | None, tenant: str, *, force: bool, timeout_s: float, as_json: bool) -> Exit:
    """Delete all data of a tenant after confirmation, and print the data that is left.

    The exit code is 2 if any data is left. The command may be repeated at any time.

    Raises:
        BadInput: the tenant's name is malformed.
        Conflict: the user does not confirm, or all keys of the gateway's file are of this tenant.
        NotReady: its runs did not end in time, or a stream is missing.
    """
    check_token(tenant, "tenant")
    if not force and not _confirmed(tenant):
        raise Conflict(f"tenant {tenant!r} was not deleted: the typed name is different")
    keys = api_keys.remove_of_tenant(data_dir, tenant)
    report = asyncio.run(_delete(broker_access(data_dir), tenant, timeout_s))
    report["removed"]["file of keys"] = keys
    if as_json:
        output.print_json({"tenant": tenant, **report})
    else:
        _show(tenant, report)
    return Exit.CRITICAL if report["left"] else Exit.OK


def export(data_dir: Path | None, tenant: str, directory: Path, *, as_json: bool) -> Exit:
    """Write all data of a tenant to a new directory.

    The exit code is a warning if some data could not be read.

    Raises:
        BadInput: the tenant's name is malformed.
        Conflict: the directory exists and is not empty.
        Unavailable: NATS cannot be reached, or no gateway responds.
    """
    check_token(tenant, "tenant")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise Conflict(f"{directory} is not empty")

    async def write(bus: Bus) -> TenantExport:
        found = TenantExport(bus, tenant, directory)
        await found.run()
        await record_action(bus, _exported(tenant), msg_id=new_id("au-"))
        return found

    found = asyncio.run(broker_access(data_dir).in_app(write, needs=_NEEDS))
    if as_json:
        output.print_json({"tenant": tenant, "written": found.written, "missing": found.missing})
    else:
        written = ", ".join(f"{count} {kind}" for kind, count in found.written.items() if count)
        output.print_line(f"{directory}: {written or 'nothing'}")
        for line in found.missing:
            output.print_error(f"missing: {line}")
    return Exit.WARNING if found.missing else Exit.OK


async def _tenants(bus: Bus) -> dict[str, removal.Counts]:
    found: dict[str, removal.Counts] = {}
    for place in PLACES:
        async for subject, count in subjects_in(bus, place.stream, place.subjects_of(ANY)):
            counts = found.setdefault(place.tenant_of(subject), {})
            counts[place.stream] = counts.get(place.stream, 0) + count
    return found


async def _delete(access: BrokerAccess, tenant: str, timeout_s: float) -> dict[str, removal.Counts]:
    removed: removal.Counts = {}
    left: removal.Counts = {}

    async def end(bus: Bus) -> None:
        removed["conversations"] = await removal.end_conversations(bus, tenant, timeout_s)
        removed.update(await removal.remove(bus, tenant))

    async def remove_objects(bus: Bus, topology: Topology) -> tuple[str, ...]:
        removed.update(await removal.remove_objects(bus, topology.account, tenant))
        left.update(await removal.left_objects(bus, topology.account, tenant))
        return ()

    async def count(bus: Bus) -> None:
        left.update(await removal.left(bus, tenant))

    await access.in_app(end, needs=_NEEDS)
    await access.in_each(remove_objects)
    await access.in_app(count)
    return {"removed": removed, "left": left}


def _confirmed(tenant: str) -> bool:
    output.print_error(
        f"This deletes all conversations, files, keys, assistants and logs of tenant {tenant!r}."
    )
    return typed("Type the name of the tenant to delete it: ") == tenant


def _show(tenant: str, report: dict[str, removal.Counts]) -> None:
    for stream, count in report["removed"].items():
        if count:
            output.print_line(f"{stream:<24} {count} removed")
    for stream, count in report["left"].items():
        output.print_error(f"{stream:<24} {count} left")
    if not report["left"]:
        output.print_line(f"no data of tenant {tenant!r} is left")


def _exported(tenant: str) -> AuditEntry:
    return AuditEntry(
        ts=datetime.now(UTC),
        tenant=tenant,
        actor="operator",
        interface="command",
        action="tenant.exported",
        target="",
    )
