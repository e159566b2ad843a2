"""Export of a conversation to a file, and import from one: the same content as on the page."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from banksman.bus.errors import RemoteError
from banksman.cli.client.gateway import GatewayClient

MAX_FILES_BYTES = 16 * 1024 * 1024
"""Maximum bytes of all attached files in an export."""
DATA = "data:application/octet-stream;base64,"


def exported(api: GatewayClient, conversation_id: str) -> dict[str, Any]:
    """Return a conversation with all its events, and the files of the workspace that its messages name."""
    record = api.call("conversation.read", conversation_id)
    events, after = list[Mapping[str, Any]](), 0
    while after is not None:
        query = {"after_seq": after, "whole": True}
        page = api.call("conversation.events", conversation_id, body=query)
        events, after = [*events, *page["items"]], page["next"]
    files = list(_files(api, conversation_id, events))
    return {"conversation": record, "events": events, "files": files}


def _files(
    api: GatewayClient, conversation_id: str, events: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, str]]:
    size = 0
    for path in dict.fromkeys(path for event in events for path in _named(event)):
        try:
            data = api.read_file(conversation_id, path)
        except RemoteError:
            continue  # It was deleted since.
        size += len(data)
        if size <= MAX_FILES_BYTES:
            yield {"path": path, "data": DATA + base64.b64encode(data).decode()}


def _named(event: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of attached files; images and documents may also be addresses or data."""
    content: str | list[dict[str, str]] = event["data"]["message"] if event["type"] == "run.started" else ""
    for part in content if isinstance(content, list) else ():
        path = part.get("path") or part.get("url")
        if path and not path.startswith(("data:", "http:", "https:")):
            yield path


def imported(api: GatewayClient, data: bytes) -> list[Mapping[str, Any]]:
    """Import conversations, with the files of an export; return what became of each conversation."""
    items, start = list[dict[str, Any]](), 0
    while start is not None:
        page = api.send_file("conversation.import", data, start=start)
        items, start = [*items, *page["items"]], page["next"]
    if len(items) == 1 and items[0]["product"] == "banksman" and items[0]["conversation_id"]:
        items[0]["left_out"] |= _stored(api, items[0]["conversation_id"], json.loads(data).get("files", ()))
    return list(items)


def _stored(api: GatewayClient, conversation_id: str, files: Iterable[Mapping[str, str]]) -> dict[str, int]:
    """Store files in a workspace; return those that were refused."""
    refused: dict[str, int] = {}
    for file in files:
        content = base64.b64decode(file["data"].partition(",")[2])
        try:
            api.write_file(conversation_id, file["path"], content)
        except RemoteError:
            refused[file["path"]] = 1
    return refused
