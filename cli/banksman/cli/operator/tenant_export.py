"""Write all data of a tenant to a directory. The data is read through the tenants' NATS API."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ConfigDict

from banksman.bus.connection import Bus
from banksman.bus.names import KEYS, MCP, TENANT_SECRETS, WEBHOOKS
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.log import EventLog
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, Fault
from banksman.contracts.event_frames import event_frame
from banksman.contracts.events import ToolCallCompleted
from banksman.contracts.wire import Stored

TIMEOUT_S = 30.0
"""Seconds for one request; a workspace may have to be restored from its snapshot first."""
SECRET_FIELDS = frozenset({"sha256", "transport", "sealed"})
"""Fields that may hold secrets: digests of keys, addresses and values of MCP servers, secrets."""


class RequestFailed(Fault):
    """The gateway refused a request of the export."""

    def __init__(self, subject: str, message: str) -> None:
        self.subject = subject
        super().__init__(f"{subject}: {message}")


class _AnyRecord(Stored):
    """A record of any bucket, with all its fields."""

    model_config = ConfigDict(extra="allow")


@dataclass(slots=True)
class TenantExport:
    bus: Bus
    tenant: str
    directory: Path
    written: dict[str, int] = field(default_factory=dict[str, int])
    """Number of items by kind."""
    missing: list[str] = field(default_factory=list[str])
    """The data that could not be read, each item with the reason."""

    async def run(self) -> None:
        """Write all files.

        Raises:
            Unavailable: No gateway serves the API.
        """
        for kind in ("assistant", "prompt", "schedule"):
            self._write(f"{kind}s.json", [item async for item in self._documents(kind)])
        self._write("usage.json", [await self._request("usage")])
        self._write("audit.json", [entry async for entry in self._pages("audit.list", "after")])
        for name in (KEYS, WEBHOOKS, MCP, TENANT_SECRETS):
            self._write(f"{name}.json", [record async for record in self._records(name)])
        async for conversation in self._pages("conversation.list", "cursor"):
            await self._conversation(conversation["conversation_id"])
            self._count("conversations")

    async def _conversation(self, conversation_id: str) -> None:
        place = self.directory / "conversations" / conversation_id
        read = await self._request(f"conversation.read.{conversation_id}")
        _store(place / "conversation.json", _text(read).encode())
        frames = [_line(frame) async for frame in self._events(conversation_id, place)]
        _store(place / "events.jsonl", "".join(frames).encode())
        try:
            async for entry in self._pages(f"file.list.{conversation_id}", "after"):
                await self._file(conversation_id, place / "files", entry)
        except BanksmanError as error:
            self.missing.append(f"files of {conversation_id}: {error}")

    async def _events(self, conversation_id: str, place: Path) -> AsyncIterator[dict[str, Any]]:
        """Yield the frames of all events as clients receive them; write the complete outputs they name."""
        last = 0
        for stored in await EventLog(self.bus).read(self.tenant, conversation_id, leader=True):
            for event in stored.commit.events:
                yield event_frame(event, conversation_id, stored.commit.log_epoch, last)
                last = event.seq
                self._count("events")
                match event.data:
                    case ToolCallCompleted(result=result) if result.output_ref is not None and event.run_id:
                        await self._output(event.run_id, result.tool_call_id, place / "outputs")
                    case _:
                        continue

    async def _output(self, run_id: str, tool_call_id: str, directory: Path) -> None:
        try:
            data = await self._bytes(f"output.read.{run_id}", {"tool_call_id": tool_call_id})
        except BanksmanError as error:
            self.missing.append(f"output of {tool_call_id}: {error}")
            return
        _store(directory / f"{tool_call_id}.txt", data)
        self._count("outputs")

    async def _file(self, conversation_id: str, directory: Path, entry: Mapping[str, Any]) -> None:
        path = PurePosixPath(entry["path"])
        # A model chose the name.
        if path.is_absolute() or ".." in path.parts or "\0" in str(path):
            self.missing.append(f"file {entry['path']!r} of {conversation_id}: its name leaves the directory")
            return
        _store(directory / path, await self._bytes(f"file.read.{conversation_id}", {"path": entry["path"]}))
        self._count("files")

    async def _bytes(self, action: str, body: Mapping[str, Any]) -> bytes:
        data = bytearray()
        while True:
            piece = await self._request(action, {**body, "offset": len(data)})
            data += base64.b64decode(piece["data_base64"])
            if not piece["more"]:
                return bytes(data)

    async def _documents(self, kind: str) -> AsyncIterator[Any]:
        """Yield the complete documents of a kind. Each is read alone, because lists omit contents."""
        async for item in self._pages(f"{kind}.list", "after"):
            yield await self._request(f"{kind}.read.{item['id']}")

    async def _records(self, bucket: str) -> AsyncIterator[Any]:
        """Yield the records of a bucket without secrets."""
        async for entry in Bucket(self.bus, bucket, _AnyRecord).entries(self.tenant):
            yield entry.value.model_dump(mode="json", exclude=set(SECRET_FIELDS))

    async def _pages(self, action: str, cursor: str) -> AsyncIterator[Any]:
        body: dict[str, Any] = {}
        while True:
            page = await self._request(action, body)
            for item in page["items"]:
                yield item
            if page.get("next") is None:
                return
            body = {cursor: page["next"]}

    async def _request(self, action: str, body: Mapping[str, Any] | None = None) -> Any:
        subject = subjects.api(self.tenant, *action.split("."))
        reply = json.loads(await self.bus.request(subject, json.dumps(body or {}).encode(), TIMEOUT_S))
        if isinstance(reply, dict) and reply.get("type") == "error":  # pyright: ignore[reportUnknownMemberType]
            raise RequestFailed(subject, str(reply.get("message")))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        return reply  # pyright: ignore[reportUnknownVariableType]

    def _write(self, name: str, items: list[Any]) -> None:
        _store(self.directory / name, _text(items).encode())
        self.written[name.removesuffix(".json")] = len(items)

    def _count(self, kind: str) -> None:
        self.written[kind] = self.written.get(kind, 0) + 1


def _store(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def _line(frame: dict[str, Any]) -> str:
    return json.dumps(frame, ensure_ascii=False) + "\n"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
