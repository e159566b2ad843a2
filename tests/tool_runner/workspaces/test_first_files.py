"""The files of an assistant are written once, completely, and never replace existing files."""

from __future__ import annotations

import base64
import json
import signal

import pytest
from tests.support.fixtures import SecuredNats
from tests.tool_runner.service.processes import Runners
from tests.tool_runner.workspaces.platform import Platform, home, platform, started

from banksman.bus.names import ASSISTANTS, CONVERSATIONS
from banksman.bus.storage.kv import Bucket
from banksman.contracts.assistants import Assistant, ConversationRecord
from banksman.contracts.workspaces import AssistantFile
from banksman.deployment.users import GATEWAY
from banksman.runtime.failpoints import TESTING_VARIABLE, VARIABLE

pytestmark = pytest.mark.timeout(300)
"""Seconds. Processes are started and killed, which takes long on a busy machine."""

SKILL = ".claude/skills/x/run.sh"
BINARY = bytes(range(256))
FILES = (
    AssistantFile(path=SKILL, content="#!/bin/sh\necho skilled\n", executable=True),
    AssistantFile(path="data/all.bin", encoding="base64", content=base64.b64encode(BINARY).decode()),
    AssistantFile(path="notes.md", content="naïve"),
)
PATHS = sorted(file.path for file in FILES)


async def carry(
    here: Platform, secured: SecuredNats, *conversations: str, files: tuple[AssistantFile, ...] = FILES
) -> int:
    """Store an assistant with files and its conversations, as a gateway does; return its revision."""
    async with await secured.connect(GATEWAY) as bus:
        revision = await Bucket(bus, ASSISTANTS, Assistant).put(
            f"{here.tenant}.carrier", Assistant(id="carrier", files=files)
        )
        for name in conversations:
            record = ConversationRecord(
                conversation_id=name, assistant="carrier", created_at="now", updated_at="now"
            )
            await Bucket(bus, CONVERSATIONS, ConversationRecord).put(f"{here.tenant}.{name}", record)
    return revision


async def test_a_workspace_starts_with_the_files_of_its_assistant(
    here: Platform, shared_nats: SecuredNats
) -> None:
    """R66: even if the first call only reads. The sandbox user owns them; the record names the revision."""
    revision = await carry(here, shared_nats, "c1", "c2")
    _, first = await here.call("c1", "read_file", path="notes.md")
    assert first.content["content"] == "naïve"
    untouched = await here.record("c1")
    assert (untouched.dirty, untouched.generation, untouched.loss) == (False, 0, None)
    assert (untouched.assistant, untouched.assistant_revision) == ("carrier", revision)
    assert await here.bash("c2", f"{SKILL}; stat -c %a {SKILL} notes.md") == "skilled\n755\n644\n"
    assert (
        await here.bash("c2", f"echo >> {SKILL}; echo mine >> .claude/skills/x/more; ls data") == "all.bin\n"
    )
    read = await here.read("c2", "data/all.bin")
    assert base64.b64decode(read.data_base64 or "") == BINARY
    assert await here.paths("c1") == PATHS


async def test_first_upload_of_a_client_is_not_replaced(here: Platform, shared_nats: SecuredNats) -> None:
    await carry(here, shared_nats, "c1")
    assert (await here.write("c1", "notes.md", b"the client's")).error is None
    assert await here.bash("c1", f"cat notes.md; {SKILL}") == "the client'sskilled\n"


async def test_first_files_are_written_once_and_later_revisions_affect_later_workspaces(
    here: Platform, shared_nats: SecuredNats
) -> None:
    await carry(here, shared_nats, "c1", "c2")
    await here.bash("c1", "rm notes.md; echo mine > data/all.bin")
    await carry(here, shared_nats, files=(AssistantFile(path="new", content="2"),))
    assert await here.bash("c1", "cat data/all.bin; ls") == "mine\ndata\n"
    assert await here.paths("c2") == []
    assert await here.bash("c2", "ls") == "new\n"


async def test_unknown_conversation_starts_with_an_empty_workspace(here: Platform) -> None:
    assert await here.bash("c1", "ls") == ""
    record = await here.record("c1")
    assert (record.assistant, record.assistant_revision) == (None, 0)


async def test_restored_workspace_equals_its_snapshot(secured: SecuredNats, runners: Runners) -> None:
    """A deleted file stays deleted on the next runner; an unchanged workspace starts with the files again."""
    pair = started(runners, 2)
    async with platform(secured, wait_s=3600) as here:
        await here.sees(*pair)
        await carry(here, secured, "c1")
        await here.bash("c1", "rm notes.md")
        lost = home(pair, (await here.clean("c1")).runner)
        names = await _placed_on(here, secured, lost.id)
        (other,) = set(pair) - {lost}
        lost.signal(signal.SIGKILL)
        await lost.ended()
        await here.sees(other)
        assert await here.bash("c1", f"ls; {SKILL}") == "data\nskilled\n"
        assert await here.bash(names, f"ls; {SKILL}") == "data\nnotes.md\nskilled\n"
        moved = await here.record(names)
        assert (moved.runner, moved.term, moved.loss) == (other.id, 2, None)


async def _placed_on(here: Platform, secured: SecuredNats, runner: str) -> str:
    """Create a conversation whose workspace is on a runner and was only read."""
    for number in range(50):
        name = f"read-{number}"
        await carry(here, secured, name)
        placement, _ = await here.call(name, "read_file", path="notes.md")
        if placement.runner == runner:
            return name
    raise AssertionError(f"50 workspaces, and none on {runner}")


async def test_runner_killed_while_creating_a_workspace_creates_it_again(
    secured: SecuredNats, runners: Runners
) -> None:
    """Some files exist and one is incomplete; this counts neither as a change nor as a loss."""
    root = runners.directory()
    dying = {TESTING_VARIABLE: "1", VARIABLE: "runner.workspace_made:kill"}
    runner = runners.make(root=root, **dying)
    runner.start()
    async with platform(secured, wait_s=3600) as here:
        await here.sees(runner)
        await carry(here, secured, "c1")
        placement = await here.placed("c1")
        request = here.request(placement, "c1", "read_file", idempotent=True, path="notes.md")
        await here.send(placement, request)
        await runner.ended()
        workspace = root / here.tenant / "c1"
        (record,) = (root / ".records").glob("*.c1.json")
        assert json.loads(record.read_text())["term"] == 0
        (workspace / "notes.md").write_text("na")
        (workspace / SKILL).unlink()
        again = runners.make(root=root)
        again.start()
        await here.sees(again)
        assert await here.bash("c1", f"cat notes.md; {SKILL}; ls") == "naïveskilled\ndata\nnotes.md\n"
        owner = await here.record("c1")
        assert (owner.term, owner.loss) == (1, None)
