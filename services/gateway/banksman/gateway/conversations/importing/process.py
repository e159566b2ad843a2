"""The program that reads files of exported conversations, with limited memory and processor time.

A reply is a line of JSON, `ReadConversations`, and the parts of its conversations as bytes.
"""

from __future__ import annotations

import base64
import codecs
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from banksman.contracts.errors import BadInput
from banksman.contracts.events import Event
from banksman.contracts.ids import digest
from banksman.contracts.json_text import parsed
from banksman.contracts.validation_errors import bad_input
from banksman.contracts.work import ImportEvents
from banksman.gateway.conversations.importing.exports import (
    ExportedEvent,
    ReadConversation,
    ReadConversations,
    ReadRequest,
    imported_events,
)
from banksman.gateway.conversations.importing.frames import MAX_IMAGE_CHARS, frames_of
from banksman.gateway.conversations.importing.products import PRODUCTS
from banksman.gateway.conversations.importing.products.trees import Assets
from banksman.runtime.limited_processes import serve

MAX_BYTES = 192 * 1024 * 1024
"""Bytes of the JSON in a file, after decompression."""
PART_BYTES = 768 * 1024
"""Bytes of the events that one message contains; one event may have more, if it fits a message."""
MAX_PART_BYTES = 960 * 1024
MAX_CONVERSATION_BYTES = 16 * 1024 * 1024
MAX_CONVERSATIONS = 50
"""Conversations of one reply; `next` is the first of the others."""
MAX_TITLE_CHARS = 200
_LISTS = re.compile(r"(?:.*/)?conversations(?:-\d+)?\.json")
codecs.lookup("cp437")  # Names in zip files may need it, and the confined process opens no file.
_FRAMES = TypeAdapter(tuple[ExportedEvent, ...])
_IMAGES = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"RIFF": "image/webp",
    b"GIF8": "image/gif",
}


def reply_to(request: bytes) -> bytes:
    head, _, data = request.partition(b"\n")
    parts = list[bytes]()
    try:
        read = _read(ReadRequest.model_validate_json(head), data, parts)
    except BadInput as error:
        read = ReadConversations(error=error.expected)
    return b"\n".join((read.model_dump_json().encode(), b"".join(parts)))


def _read(request: ReadRequest, data: bytes, parts: list[bytes]) -> ReadConversations:
    found = list[ReadConversation]()
    archive = _archive(data)
    assets = partial(_asset, archive) if archive else _no_asset
    for at, item in enumerate(_items(data, archive)):
        if at < request.start:
            continue
        if len(found) == MAX_CONVERSATIONS or sum(map(len, parts)) > MAX_CONVERSATION_BYTES:
            return ReadConversations(items=tuple(found), next=at)
        found.append(_conversation(request, at, item, assets, parts))
    if not found and not request.start:
        raise BadInput("file", None, "a file with conversations")
    return ReadConversations(items=tuple(found))


def _archive(data: bytes) -> zipfile.ZipFile | None:
    if not data.startswith(b"PK\x03\x04"):
        return None
    try:
        return zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError) as error:
        raise BadInput("file", None, "a complete zip file") from error


def _items(data: bytes, archive: zipfile.ZipFile | None) -> Iterator[object]:
    """Yield the conversations of a file one by one, so that one at a time takes memory."""
    if archive is None:
        yield from _listed(data)
        return
    names = [one for one in archive.infolist() if _LISTS.fullmatch(one.filename)]
    if not names:
        raise BadInput("file", None, "a zip file that contains conversations.json")
    if sum(one.file_size for one in names) > MAX_BYTES:
        raise BadInput("file", None, f"at most {MAX_BYTES} bytes of conversations")
    for name in sorted(names, key=lambda one: one.filename):
        try:
            content = archive.read(name)
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
            raise BadInput("file", None, f"a zip file whose {name.filename} can be read") from error
        yield from _listed(content)


def _listed(data: bytes) -> Iterator[object]:
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
        if not text.lstrip().startswith("["):
            yield json.loads(text)
            return
        decoder, at = json.JSONDecoder(), text.index("[") + 1
        while (at := _after_space(text, at)) < len(text) and text[at] != "]":
            value, at = decoder.raw_decode(text, at)
            yield value
            at = _after_space(text, at)
            at += text[at : at + 1] == ","
        if at >= len(text):
            raise ValueError("the list has no end")
    except (ValueError, RecursionError) as error:
        expected = f"JSON of exported conversations, or a zip file of it; {_fault(error)}"
        raise BadInput("file", None, expected) from error


def _fault(error: Exception) -> str:
    match error:
        case UnicodeDecodeError():
            return "it is not UTF-8"
        case RecursionError():
            return "it is nested too deeply"
        case json.JSONDecodeError():
            return f"it is broken at line {error.lineno}, column {error.colno}"
        case _:
            return "its list has no end"


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _conversation(
    request: ReadRequest, at: int, item: object, assets: Assets, parts: list[bytes]
) -> ReadConversation:
    conversation_id = f"c{digest(f'{request.source}/{at}'.encode())[:21]}"
    left_out = Counter[str]()
    title, product = _named(item), ""
    try:
        title, product, frames = _frames(item, assets, left_out)
        title = title or _first_line(frames)
        events = imported_events(frames, request.tenant, conversation_id, datetime.now(UTC), left_out)
        made = list(_parts(request.tenant, conversation_id, events))
    except (BadInput, ValueError, AttributeError, RecursionError) as error:
        reason = _reason(error)
        return ReadConversation(conversation_id=conversation_id, title=title, product=product, error=reason)
    parts += made
    return ReadConversation(
        conversation_id=conversation_id,
        title=title,
        product=product,
        runs=sum(event.data.type == "run.finished" for event in events),
        left_out={name: count for name, count in left_out.items() if count > 0},
        parts=tuple(map(len, made)),
    )


def _frames(
    item: object, assets: Assets, left_out: Counter[str]
) -> tuple[str, str, tuple[ExportedEvent, ...]]:
    """Return title, product and frames of a conversation."""
    if not isinstance(item, dict):
        raise BadInput("conversation", None, "an object with a conversation")
    fields = cast(dict[str, Any], item)
    # Stricter than the scan of the file: duplicate keys, constants, depth and surrogates.
    parsed(json.dumps(fields).encode())
    fields.pop("files", None)  # Clients upload them to the new workspace.
    if "events" in fields:
        record: dict[str, Any] = fields.get("conversation") or {}
        frames = _FRAMES.validate_python(fields["events"])
        return str(record.get("title") or "")[:MAX_TITLE_CHARS], "banksman", frames
    for name, product in PRODUCTS.items():
        if name in fields:
            tree = product.model_validate(fields).tree(assets)
            return tree.title[:MAX_TITLE_CHARS], tree.product, frames_of(tree, left_out)
    expected = "an export of this product, ChatGPT, Claude or Open WebUI"
    raise BadInput("conversation", ", ".join(fields)[:200], expected)


def _named(item: object) -> str:
    """Return the title that a product stored, also of a conversation that cannot be read."""
    fields = cast(dict[str, Any], item) if isinstance(item, dict) else {}
    named = fields.get("title") or fields.get("name")
    return named[:MAX_TITLE_CHARS] if isinstance(named, str) else ""


def _first_line(frames: tuple[ExportedEvent, ...]) -> str:
    first = next((one.data.get("message") for one in frames if one.type == "run.started"), "")
    return first.strip().split("\n")[0][:60] if isinstance(first, str) else ""


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        error = bad_input(error, "conversation")
    return str(error)[:500]


def _parts(tenant: str, conversation_id: str, events: tuple[Event, ...]) -> Iterator[bytes]:
    """Yield the events in messages that agents write as one commit each."""
    sizes = [len(event.model_dump_json()) for event in events]
    if sum(sizes) > MAX_CONVERSATION_BYTES or max(sizes) > MAX_PART_BYTES:
        expected = f"at most {MAX_CONVERSATION_BYTES} bytes, and {MAX_PART_BYTES} of one event"
        raise BadInput("events", f"{sum(sizes)} bytes", expected)
    start, size = 0, 0
    for end, more in enumerate([*sizes, PART_BYTES]):
        if end > start and size + more > PART_BYTES:
            part = ImportEvents(tenant=tenant, conversation_id=conversation_id, events=events[start:end])
            yield part.model_dump_json(by_alias=True).encode()
            start, size = end, 0
        size += more


def _no_asset(_: str) -> None:
    return None


def _asset(archive: zipfile.ZipFile, pointer: str) -> str | None:
    """Return the data URL of an image, which an archive names by its id and more."""
    found = next((one for one in archive.infolist() if pointer and pointer in one.filename), None)
    if found is None or found.file_size * 4 // 3 > MAX_IMAGE_CHARS - 64:
        return None
    data = archive.read(found)
    kind = next((kind for start, kind in _IMAGES.items() if data.startswith(start)), None)
    return kind and f"data:{kind};base64,{base64.b64encode(data).decode()}"


if __name__ == "__main__":
    serve(reply_to)
