"""Files of a workspace over NATS: list, upload, download and delete, never outside."""

from __future__ import annotations

import base64
import os

import pytest
from tests.tool_runner.service.owner import Owner

from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from banksman.contracts.runner_requests import FileDelete, FileList, FileRead, FileReply, FileWrite

SLICE = 500_000


async def upload(owner: Owner, path: str, content: bytes) -> FileReply:
    """Upload in slices, as a client does; return the reply to the last slice."""
    token = new_id("u")
    reply = FileReply()
    for offset in range(0, max(1, len(content)), SLICE):
        piece = content[offset : offset + SLICE]
        reply = await owner.file(
            FileWrite(
                path=path,
                upload=token,
                offset=offset,
                data_base64=base64.b64encode(piece).decode(),
                last=offset + SLICE >= len(content),
            )
        )
    return reply


async def download(owner: Owner, path: str) -> bytes:
    content, more = b"", True
    while more:
        part = await owner.file(FileRead(path=path, offset=len(content), max_bytes=SLICE))
        assert part.error is None
        content += base64.b64decode(part.data_base64 or "")
        more = part.more
    return content


async def test_an_upload_is_listed_downloaded_used_and_deleted(owner: Owner) -> None:
    content = os.urandom(1_200_000)
    assert (await upload(owner, "data/in.bin", content)).total_bytes == len(content)
    listed = (await owner.file(FileList())).items
    assert [(entry.path, entry.size) for entry in listed] == [("data/in.bin", len(content))]
    assert await download(owner, "/workspace/data/in.bin") == content
    assert (await owner.bash("wc -c < data/in.bin")).content["stdout"] == f"{len(content)}\n"
    assert await owner.file(FileDelete(path="data/in.bin")) == FileReply()
    assert (await owner.file(FileList())).items == ()


async def test_an_unfinished_upload_changes_nothing(owner: Owner) -> None:
    await upload(owner, "note.txt", b"old")
    half = FileWrite(path="note.txt", upload=new_id("u"), offset=0, data_base64="bmV3", last=False)
    assert (await owner.file(half)).total_bytes == 3
    assert await download(owner, "note.txt") == b"old"
    assert [entry.path for entry in (await owner.file(FileList())).items] == ["note.txt"]


async def test_slice_may_be_repeated_but_not_missing(owner: Owner) -> None:
    first = FileWrite(path="f", upload=new_id("u"), offset=0, data_base64="YWJj", last=False)
    for _ in range(2):
        assert (await owner.file(first)).total_bytes == 3
    missing = await owner.file(first.model_copy(update={"offset": 9}))
    assert missing.error is not None and missing.error.startswith("offset:")
    last = first.model_copy(update={"offset": 3, "data_base64": "ZGVm", "last": True})
    assert (await owner.file(last)).error is None
    assert await download(owner, "f") == b"abcdef"


async def test_listing_contains_one_directory_and_states_if_it_is_incomplete(owner: Owner) -> None:
    await owner.bash("mkdir -p a/b ab; touch a/1 a/b/2 ab/3 4; ln -s /etc/passwd link")
    everything = await owner.file(FileList())
    assert [entry.path for entry in everything.items] == ["4", "a/1", "a/b/2", "ab/3"]
    assert not everything.more
    assert [entry.path for entry in (await owner.file(FileList(path="a"))).items] == ["a/1", "a/b/2"]
    cut = await owner.file(FileList(limit=2))
    assert len(cut.items) == 2 and cut.more


async def test_listing_creates_no_workspace(owner: Owner) -> None:
    assert await owner.file(FileList()) == FileReply()
    assert not (owner.runner.root / owner.tenant).exists()


@pytest.mark.parametrize("path", ["../escape", "/etc/passwd", "a\0b", "", "link/inside"])
async def test_paths_outside_are_refused(owner: Owner, path: str) -> None:
    await owner.bash("ln -s /etc link")
    assert (await owner.file(FileRead(path=path))).error
    assert (await owner.file(FileDelete(path=path))).error
    assert (await upload(owner, path, b"x")).error


async def test_a_file_may_be_as_large_as_a_command_could_write(owner: Owner) -> None:
    beyond = FileWrite(path="f", upload=new_id("u"), offset=64 * 1024**2, data_base64="YQ==", last=True)
    reply = await owner.file(beyond)
    assert reply.error is not None and "67108864 bytes" in reply.error


async def test_invalid_file_request_is_an_error(owner: Owner) -> None:
    subject = subjects.files(owner.runner.id, owner.tenant, owner.conversation)
    for body in (b"", b'{"op":"chmod","path":"f"}', b'{"op":"write","path":"f"}'):
        assert FileReply.model_validate_json(await owner.gateway.request(subject, body, 5)).error
