"""The recipes of CONTRIBUTING ("How to add …"), each shown by a patch of the product that works.

A patch is the commit that a developer would make. It is applied to a copy of the product, which then starts.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from banksman.cli.machine import free_port
from tests.support.client import Client
from tests.support.paths import ROOT
from tests.support.scripted_models import ScriptedReply
from tests.support.system import ScriptedModel, System, scripted_model
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.support.web_server import web_server

PATCHES = Path(__file__).parent / "recipes"
MAX_FILES = {"client-frame": 2, "approval-channel": 2, "vendor": 3, "event": 3}
"""The files of the product that each recipe changes, as CONTRIBUTING states."""
PRODUCT = ("shared", "services", "cli")
FOLD = """
from banksman.contracts.event_frames import is_shown
from banksman.contracts.events import Commit, Event
from banksman.runs.fold import apply_commit
from banksman.runs.state import Conversation
stored = {"v": 1, "seq": 1, "ts": "2026-01-01T00:00:00Z", "data": {"type": "workflow.noted", "text": "hi"}}
event = Event.model_validate(stored)
commit = Commit(ts=event.ts, id="c", log_epoch="e", first_seq=1, owner=None, events=(event,))
state = apply_commit(Conversation("t", "c"), 1, commit)
print(type(event.data).__name__, state.last_seq, is_shown("workflow.noted", "final"))
"""


@pytest.mark.parametrize("recipe", MAX_FILES)
def test_a_recipe_changes_no_more_files_than_stated(recipe: str) -> None:
    patch = (PATCHES / f"{recipe}.patch").read_text(encoding="utf-8")

    changed = [line for line in patch.splitlines() if line.startswith("+++ b/")]

    assert 1 <= len(changed) <= MAX_FILES[recipe]
    assert all(line.removeprefix("+++ b/").startswith(PRODUCT) for line in changed)


def test_contributing_states_the_same_counts() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

    assert f"**A frame of clients** ({MAX_FILES['client-frame']} files)" in text
    assert f"**A channel for approval requests** ({MAX_FILES['approval-channel']} files)" in text
    assert f"**A vendor of models** ({MAX_FILES['vendor']} files)" in text
    assert f"**An event** ({MAX_FILES['event']} files)" in text


@pytest.fixture(scope="module")
def changed_product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the product with all recipes applied."""
    copy: Path = tmp_path_factory.mktemp("changed")
    for folder in PRODUCT:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for recipe in MAX_FILES:
        command = ["git", "apply", "-C1", str(PATCHES / f"{recipe}.patch")]
        subprocess.run(command, cwd=copy, check=True, capture_output=True, text=True)
    return copy


@pytest.fixture(scope="module")
def python_path(changed_product: Path) -> str:
    """The roots of the copy, which precede those of the environment."""
    roots = [changed_product / "shared", changed_product / "cli", *(changed_product / "services").iterdir()]
    return ":".join(str(root) for root in roots)


@pytest.fixture(scope="module")
def model() -> Generator[ScriptedModel]:
    with scripted_model() as started:
        yield started


@pytest.fixture(scope="module")
def receiver_port() -> int:
    """The port to which webhooks may be sent."""
    return free_port()


@pytest.fixture(scope="module")
def system(
    python_path: str, model: ScriptedModel, receiver_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Generator[System]:
    """A system of the changed product."""
    environment = {
        "PYTHONPATH": python_path,
        "BANKSMAN_MODELS__PROVIDERS": json.dumps(
            {"example": {"api": "example", "base_url": f"{model.url}/v1"}}
        ),
        "BANKSMAN_GATEWAY__WEBHOOK_ADDRESSES": json.dumps([f"127.0.0.1:{receiver_port}"]),
    }
    running = System(tmp_path_factory.mktemp("system"), model, environment)
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture
async def client(system: System) -> AsyncGenerator[Client]:
    async with Client.connected(system.url, timeout_s=WAIT_TIMEOUT_S) as connected:
        yield connected


async def test_a_new_frame_reaches_its_handler(system: System, client: Client) -> None:
    conversation_id = await client.create()

    reply = await client.request("conversation.pin", conversation_id=conversation_id)

    assert reply["type"] == "ack"
    async with httpx.AsyncClient(base_url=system.url, timeout=WAIT_TIMEOUT_S) as http:
        read = await http.get(f"/context/conversations/{conversation_id}")
    assert read.json()["pinned"] is True


async def test_a_new_vendor_completes_a_run(model: ScriptedModel, client: Client) -> None:
    named = model.play("recipe", [ScriptedReply(text="Hello from elsewhere.")])
    conversation_id = await client.create(named.replace("openai:", "example:", 1))

    finished = await client.run(conversation_id, "Hi")

    assert finished["status"] == "completed"


async def test_a_new_channel_receives_its_own_format(system: System, receiver_port: int) -> None:
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def receive(request: web.Request) -> web.Response:
        await received.put(await request.json())
        return web.Response()

    app = web.Application()
    app.router.add_post("/hook", receive)
    webhook = {
        "url": f"http://127.0.0.1:{receiver_port}/hook",
        "events": ["approval.requested"],
        "format": "card",
    }
    async with (
        web_server(app, receiver_port),
        httpx.AsyncClient(base_url=system.url, timeout=WAIT_TIMEOUT_S) as http,
    ):
        created = (await http.post("/context/webhooks", json=webhook)).raise_for_status().json()
        (await http.post(f"/context/webhooks/{created['id']}/test")).raise_for_status()
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            body = await received.get()

    assert body["type"] == "AdaptiveCard"


def test_a_new_event_is_read_folded_and_shown(python_path: str) -> None:
    command = [sys.executable, "-c", FOLD]

    printed = subprocess.run(
        command, env={"PYTHONPATH": python_path}, check=True, capture_output=True, text=True
    )

    assert printed.stdout.split() == ["WorkflowNoted", "1", "False"]
