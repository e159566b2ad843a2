"""One running system for all scenarios: `banksman up`, with a scripted model server for its vendors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path

import pytest

from banksman.model_server import RawReply, Reply
from banksman.testing.client import Client
from banksman.testing.system import ScriptedModel, System, scripted_model

Play = Callable[..., str]


@pytest.fixture(scope="session")
def model() -> Generator[ScriptedModel]:
    """The vendors' stand-in. No request of the whole session may break their rules."""
    with scripted_model() as scripted:
        yield scripted
        assert scripted.violations() == []


@pytest.fixture(scope="session")
def system(model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> Generator[System]:
    """The system, started once. A test that kills parts of it starts one of its own."""
    data: Path = tmp_path_factory.mktemp("banksman")
    running = System(data, model)
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture
async def client(system: System) -> AsyncGenerator[Client]:
    """A websocket client that has said hello."""
    async with Client.connected(system.url) as connected:
        yield connected


@pytest.fixture
def play(model: ScriptedModel, request: pytest.FixtureRequest) -> Play:
    """Load replies for this test alone; gives the model's name."""

    def load(*replies: Reply | RawReply, vendor: str = "openai", **options: object) -> str:
        name = "".join(c if c.isalnum() else "-" for c in request.node.name)[-60:]
        model.play(name, replies, **options)
        return f"{vendor}:scripted/{name}"

    return load
