"""`banksman tenants`: list the tenants, and export or delete all data of a tenant."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from banksman.bus import names
from banksman.bus.connection import Bus
from banksman.bus.jetstream import subjects_in
from banksman.bus.publish import record_action
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.log import EventLog
from banksman.cli import output
from banksman.cli.broker.server import BrokerAccess
from banksman.cli.operator import keys as api_keys
from banksman.cli.operator import tenant_removal as removal
from banksman.cli.operator.streams import broker_access
from banksman.cli.operator.tenant_removal import PLACES
from banksman.cli.output import Exit, typed
from banksman.contracts.administration import AuditEntry
from banksman.contracts.errors import BanksmanError, Conflict
from banksman.contracts.event_frames import event_frame
from banksman.contracts.events import ToolCallCompleted
from banksman.contracts.ids import check_token, new_id
from banksman.contracts.paths import portable_path
from banksman.contracts.subjects import ANY
from banksman.contracts.wire import JsonObject, JsonValue, Stored
from banksman.deployment.topology import Topology
from banksman.sdk.transports.nats import NatsTransport

_NEEDS = (names.EVENTS, names.AUDIT, names.kv_stream(names.HEADS), names.kv_stream(names.CONVERSATIONS))


def ls(data_dir: Path | None, *, as_json: bool) -> Exit:
    found = asyncio.run(broker_access(data_dir).in_app(_tenants, needs=_NEEDS))
    tenants = [{"tenant": tenant, "messages": counts} for tenant, counts in sorted(found.items())]
    output.print_items(tenants, _line_of_tenant, none="no tenants", as_json=as_json)
    return Exit.OK


def _line_of_tenant(facts: Mapping[str, Any]) -> str:
    counts = facts["messages"]
    conversations = counts[names.kv_stream(names.CONVERSATIONS)]
    return f"{facts['tenant']:<24} {conversations} conversations, {counts.total()} messages"


def delete(data_dir: Path | None, tenant: str, *, force: bool, timeout_s: float, as_json: bool) -> Exit:
    """Delete all data of a tenant after confirmation, and print the data that is left. May be repeated.

    Raises:
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
    """Write all data of a tenant to a new directory, through the tenants' NATS API."""
    check_token(tenant, "tenant")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise Conflict(f"{directory} is not empty")

    async def write(bus: Bus) -> TenantExport:
        found = TenantExport(bus, tenant, directory, NatsTransport(bus, tenant))
        await found.run()
        done = AuditEntry(
            ts=datetime.now(UTC),
            tenant=tenant,
            actor="operator",
            interface="command",
            action="tenant.exported",
            target="",
        )
        await record_action(bus, done, msg_id=new_id("au-"))
        return found

    found = asyncio.run(broker_access(data_dir).in_app(write, needs=_NEEDS))
    facts = {"tenant": tenant, "written": found.written, "missing": found.missing}
    written = ", ".join(f"{count} {kind}" for kind, count in found.written.items() if count)
    missing = [f"missing: {line}" for line in found.missing]
    text = f"{directory}: {written or 'nothing'}"
    output.print_result(facts, text, problems=missing, as_json=as_json)
    return Exit.WARNING if found.missing else Exit.OK


async def _tenants(bus: Bus) -> dict[str, removal.Counts]:
    found: dict[str, removal.Counts] = defaultdict(removal.Counts)
    for place in PLACES:
        async for subject, count in subjects_in(bus, place.stream, place.subjects_of(ANY)):
            found[place.tenant_of(subject)][place.stream] += count
    return found


async def _delete(access: BrokerAccess, tenant: str, timeout_s: float) -> dict[str, removal.Counts]:
    removed, left = removal.Counts(), removal.Counts()

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


SECRET_FIELDS = frozenset({"sha256", "transport", "sealed", "sealed_key", "client_secret"})
"""Fields that may hold secrets: digests of keys, addresses and values of MCP servers, secrets."""
DOCUMENTS = ("assistant", "prompt", "schedule")
NOT_EXPORTED = frozenset(
    {names.CONVERSATIONS, names.OWNERS, names.TOOLS, names.IDEMPOTENCY, names.DAMAGED, names.DELIVERIES}
)
"""Buckets that are exported with the conversations, or that only serve running processes."""


class _AnyRecord(Stored):
    """A record of any bucket or a reply to any request, with all its fields."""

    model_config = ConfigDict(extra="allow")


@dataclass(slots=True)
class TenantExport:
    bus: Bus
    tenant: str
    directory: Path
    api: NatsTransport
    written: Counter[str] = field(default_factory=Counter[str])
    missing: list[str] = field(default_factory=list[str])
    paths: set[Path] = field(default_factory=set[Path])

    async def run(self) -> None:
        for kind in DOCUMENTS:
            self._write(f"{kind}s.json", [item async for item in self._documents(kind)])
        self._write("usage.json", [await self._request("usage")])
        self._write("audit.json", [entry async for entry in self._pages("audit.list", "after")])
        for name in sorted({*removal.TENANT_KEYS} - NOT_EXPORTED - {f"{kind}s" for kind in DOCUMENTS}):
            self._write(f"{name}.json", [record async for record in self._records(name)])
        async for conversation in self._pages("conversation.list", "cursor"):
            await self._conversation(conversation["conversation_id"])
            self.written["conversations"] += 1

    async def _conversation(self, conversation_id: str) -> None:
        place = self.directory / "conversations" / conversation_id
        read = await self._request("conversation.read", conversation_id)
        _store(place / "conversation.json", _text(read).encode())
        events = [
            json.dumps(frame, ensure_ascii=False) async for frame in self._events(conversation_id, place)
        ]
        _store(place / "events.jsonl", "".join(f"{event}\n" for event in events).encode())
        try:
            for entry in await self.api.files.list(conversation_id, ""):
                await self._file(conversation_id, place / "files", entry.path)
        except BanksmanError as error:
            self.missing.append(f"files of {conversation_id}: {error}")

    async def _events(self, conversation_id: str, place: Path) -> AsyncIterator[dict[str, Any]]:
        """Yield the frames of all events as clients receive them; write the complete outputs they name."""
        last = 0
        for stored in await EventLog(self.bus).read(self.tenant, conversation_id, leader=True):
            for event in stored.commit.events:
                yield event_frame(event, conversation_id, stored.commit.log_epoch, last)
                last = event.seq
                self.written["events"] += 1
                match event.data:
                    case ToolCallCompleted(result=result) if result.output_ref is not None and event.run_id:
                        await self._output(event.run_id, result.tool_call_id, place / "outputs")
                    case _:
                        continue

    async def _output(self, run_id: str, tool_call_id: str, directory: Path) -> None:
        try:
            data = await self._whole_output(run_id, tool_call_id)
        except BanksmanError as error:
            self.missing.append(f"output of {tool_call_id}: {error}")
            return
        _store(directory / f"{tool_call_id}.txt", data)
        self.written["outputs"] += 1

    async def _file(self, conversation_id: str, directory: Path, name: str) -> None:
        # A model chose the name.
        path = directory / portable_path(name)
        if path in self.paths:
            self.missing.append(f"file {name!r} of {conversation_id}: {path.name!r} exists")
            return
        self.paths.add(path)
        _store(path, await self.api.files.read(conversation_id, name))
        self.written["files"] += 1

    async def _whole_output(self, run_id: str, tool_call_id: str) -> bytes:
        data = bytearray()
        while True:
            body: JsonObject = {"tool_call_id": tool_call_id, "offset": len(data)}
            piece = await self._request("output.read", run_id, body=body)
            data += base64.b64decode(piece["data_base64"])
            if not piece["more"]:
                return bytes(data)

    async def _documents(self, kind: str) -> AsyncIterator[Any]:
        """Yield the complete documents of a kind. Each is read alone, because lists omit contents."""
        async for item in self._pages(f"{kind}.list", "after"):
            yield await self._request(f"{kind}.read", item["id"])

    async def _records(self, bucket: str) -> AsyncIterator[Any]:
        async for entry in Bucket(self.bus, bucket, _AnyRecord).entries(self.tenant):
            yield _without_secrets(entry.value.model_dump(mode="json"))

    async def _pages(self, operation: str, cursor: str) -> AsyncIterator[Any]:
        body: JsonObject = {}
        while True:
            page = await self._request(operation, body=body)
            for item in page["items"]:
                yield item
            if page.get("next") is None:
                return
            body = {cursor: page["next"]}

    async def _request(self, operation: str, *ids: str, body: JsonObject | None = None) -> dict[str, Any]:
        reply = await self.api.call(operation, _AnyRecord, *ids, body=body)
        return reply.model_dump(mode="json")

    def _write(self, name: str, items: list[Any]) -> None:
        _store(self.directory / name, _text(items).encode())
        self.written[name.removesuffix(".json")] = len(items)


def _without_secrets(value: JsonValue) -> JsonValue:
    match value:
        case dict():
            return {
                name: _without_secrets(inner) for name, inner in value.items() if name not in SECRET_FIELDS
            }
        case list():
            return [_without_secrets(inner) for inner in value]
        case _:
            return value


def _store(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
