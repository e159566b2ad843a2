"""Files of an assistant, such as skills, with which every new workspace of its conversations starts."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import httpx
import pytest

from banksman import sdk
from banksman.contracts.assistants import NewAssistant
from banksman.contracts.ids import new_id
from banksman.contracts.workspaces import AssistantFile
from tests.scenarios.conftest import Play
from tests.support.client import Client
from tests.support.replies import bash
from tests.support.scripted_models import ScriptedReply

RUN = ".claude/skills/greet/run.sh"
FILES = [
    {
        "path": ".claude/skills/greet/SKILL.md",
        "content": "---\nname: greet\ndescription: Greets.\n---\nRun `run.sh NAME`.\n",
    },
    {"path": RUN, "content": '#!/bin/sh\necho "hello $1"\n', "executable": True},
]
TOOLS = {"tools": {"enabled": True}, "approval_policy": [{"tool": "*", "action": "auto"}]}


def outputs(outcome: dict[str, Any]) -> list[str]:
    """Return the output of a run's commands."""
    return [call["result"]["stdout"] for call in outcome["tool_calls"]]


async def test_every_new_workspace_starts_with_the_files_of_its_assistant(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """R66: a skill runs in each conversation; a file that a conversation deletes stays deleted in it."""
    done = ScriptedReply(text="done")
    name = play(bash(f"{RUN} you; rm -r .claude"), done, bash("ls -d .claude 2>/dev/null"), done)
    made = await http.post("/context/assistants", json={"model": name, "files": FILES, **TOOLS})
    assert made.status_code == 201, made.text
    assistant = made.json()
    first = await client.create(assistant=assistant["id"])
    second = await client.create(assistant=assistant["id"])

    assert outputs(await client.run(first, "go")) == ["hello you\n"]
    assert outputs(await client.run(first, "again")) == [""]
    assert outputs(await client.run(second, "go")) == ["hello you\n"]
    assert [file["path"] for file in assistant["files"]] == [file["path"] for file in FILES]


async def test_a_client_reads_and_replaces_assistant_files_before_the_first_call(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """R66: an upload replaces the file of the assistant."""
    name = play(bash(f"{RUN} there"), ScriptedReply(text="done"))
    made = await http.post("/context/assistants", json={"model": name, "files": FILES, **TOOLS})
    conversation = await client.create(assistant=made.json()["id"])
    files = f"/context/conversations/{conversation}/files"

    read = await http.get(f"{files}/{RUN}")
    stored = await http.put(f"{files}/{RUN}", content=b'#!/bin/sh\necho "goodbye $1"\n')

    assert (read.status_code, read.text) == (200, FILES[1]["content"])
    assert stored.is_success
    assert outputs(await client.run(conversation, "go")) == ["goodbye there\n"]


async def test_all_files_of_a_workspace_are_downloaded_as_one_archive(
    client: Client, http: httpx.AsyncClient
) -> None:
    conversation = await client.create(title="Cranes")
    where = f"/context/conversations/{conversation}"
    for path, content in (("a.txt", b"one"), ("folder/b.txt", b"two")):
        assert (await http.put(f"{where}/files/{path}", content=content)).status_code == 201

    response = await http.get(f"{where}/archive")

    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            "a.txt": b"one",
            "folder/b.txt": b"two",
        }
    assert response.headers["content-disposition"] == "attachment; filename*=UTF-8''Cranes.zip"


async def test_files_with_long_paths_are_listed_and_downloaded_completely(
    client: Client, http: httpx.AsyncClient, nats: sdk.Client
) -> None:
    """Their list is longer than one message of the broker."""
    conversation = await client.create()
    where = f"/context/conversations/{conversation}"
    paths = [f"{'/'.join(['d' * 250] * 15)}/{number:03}" for number in range(290)]
    for path in paths:
        assert (await http.put(f"{where}/files/{path}", content=b"")).status_code == 201

    listed = (await http.get(f"{where}/files")).json()["items"]
    archive = await http.get(f"{where}/archive")
    over_nats = await nats.files(conversation)

    assert [file["path"] for file in listed] == paths
    assert [file.path for file in over_nats] == paths
    with zipfile.ZipFile(io.BytesIO(archive.content)) as files:
        assert files.namelist() == paths


@pytest.mark.parametrize("path", ["../out", "/etc/passwd", ".banksman-x"])
async def test_an_assistant_file_with_an_escaping_path_is_refused_over_http(
    http: httpx.AsyncClient, path: str
) -> None:
    """R72: the error names the field, and nothing is stored."""
    wanted = new_id("as")
    response = await http.post(
        "/context/assistants", json={"id": wanted, "files": [{"path": path, "content": "x"}]}
    )
    assert (response.status_code, (await http.get(f"/context/assistants/{wanted}")).status_code) == (400, 404)
    assert "files.0.path" in response.text


async def test_files_are_part_of_an_assistants_revision_over_nats(nats: sdk.Client) -> None:
    """R84: an equal set keeps the revision, another gets a new one; a list omits contents."""
    file = AssistantFile(path="a", content="one")
    made = await nats.create_assistant(NewAssistant(id=new_id("as"), files=(file,)))
    same = await nats.update_assistant(made.id, NewAssistant(files=(file,)))
    other = await nats.update_assistant(made.id, NewAssistant(files=(AssistantFile(path="a", content="2"),)))

    assert same.revision == made.revision < other.revision
    assert (await nats.assistant(made.id)).files[0].data == b"2"
    (listed,) = [one for one in await nats.assistants() if one.id == made.id]
    assert listed.files == (AssistantFile(path="a"),)
    await nats.delete_assistant(made.id)
