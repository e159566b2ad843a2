"""A runner that serves files from memory."""

from __future__ import annotations

import base64
import time
from typing import Any

from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.bus.names import RUNNERS
from banksman.bus.storage.kv import Bucket
from banksman.contracts import subjects
from banksman.contracts.calls import RunnerLease
from banksman.contracts.ids import new_id
from banksman.contracts.processes import ProcessInfo
from banksman.contracts.runner_requests import FileEntry, FileReply, WorkspaceDiff
from banksman.contracts.wire import strict_json


async def lease_of(bus: Bus, runner: str) -> None:
    """Give a runner its lease; it has the least load, also beside the runners of earlier tests."""
    load = -time.monotonic_ns() // 1_000_000
    lease = RunnerLease(runner=runner, runner_epoch=1, load=load, workspaces=True)
    await Bucket(bus, RUNNERS, RunnerLease).put(runner, lease)


async def serve_files(bus: Bus, files: dict[str, bytes]) -> dict[str, bytes]:
    """Serve files in place of a runner; return the unfinished uploads."""
    runner = new_id("r")
    await lease_of(bus, runner)
    uploads: dict[str, bytes] = {}

    async def received(message: Message) -> None:
        request: Any = strict_json(message.data)
        path = request.get("path", "")
        match request["op"]:
            case "list":
                later = sorted(name for name in files if name > request.get("after", ""))
                items = tuple(
                    FileEntry(path=name, size=len(files[name]), modified_at="2026-01-01T00:00:00Z")  # pyright: ignore[reportArgumentType]
                    for name in later[: request["limit"]]
                )
                response = FileReply(items=items, more=len(later) > len(items))
            case "write":
                upload = request["upload"]
                uploads[upload] = uploads.get(upload, b"") + base64.b64decode(request["data_base64"])
                if request["last"]:
                    files[path] = uploads.pop(upload)
                response = FileReply()
            case "diff":
                response = FileReply(diff=WorkspaceDiff(patch="the patch\n"))
            case "process.list":
                process = ProcessInfo(id="p1", command="make serve", status="running")
                response = FileReply(processes=(process,))
            case "end_upload":
                uploads.pop(request["upload"], None)
                response = FileReply()
            case _ if path not in files:
                response = FileReply(error=f"{path}: there is no such file")
            case "read":
                part = files[path][request["offset"] : request["offset"] + request["max_bytes"]]
                more = request["offset"] + len(part) < len(files[path])
                response = FileReply(data_base64=base64.b64encode(part).decode(), more=more)
            case _:
                del files[path]
                response = FileReply()
        await bus.publish(message.reply, response.model_dump_json().encode())

    await bus.subscribe(subjects.files(runner, subjects.ANY, subjects.ANY), received)
    return uploads
