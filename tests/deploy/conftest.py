"""The deployment of compose.yaml, built and started once for all tests of this folder."""

import asyncio
import os
from collections.abc import Generator
from typing import Any

import pytest

from tests.support.client import Client
from tests.support.compose import BUILD_TIMEOUT_S, Compose, deployment
from tests.support.docker_engine import DockerEngine

WAIT_TIMEOUT_S = 60.0
"""Seconds that anything in the containers may take on a busy machine."""


@pytest.fixture(scope="session")
def built(docker_engine: DockerEngine, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Compose:
    """Every image, built as `make compose` does behind a proxy: certificates and pip settings are secrets."""
    project = f"banksman-test-{os.getpid()}"
    compose = deployment(docker_engine, base_image, tmp_path_factory.mktemp("build"), project)
    compose("--profile", "*", "build", timeout_s=BUILD_TIMEOUT_S)
    return compose


@pytest.fixture(scope="session")
def stack(built: Compose) -> Generator[Compose]:
    """The whole system in containers, every service ready."""
    try:
        built("up", "--detach", "--wait")
        yield built
    finally:
        built.down()


async def bash(stack: Compose, command: str) -> dict[str, Any]:
    """What a model reads after a command that a person approved: the run goes through the published port."""
    async with Client.connected(stack.url, timeout_s=WAIT_TIMEOUT_S) as client:
        return await bash_in(client, await client.create(), command)


async def bash_in(client: Client, conversation: str, command: str) -> dict[str, Any]:
    """The same, in a conversation that there is."""
    run = await client.chat(conversation, f"run `{command}`")
    await client.approve(run)
    (call,) = (await client.finished(run))["tool_calls"]
    return dict(call["result"])


async def ready(stack: Compose, service: str) -> None:
    """Wait until a service's only container is healthy."""
    await asyncio.to_thread(stack, "up", "--detach", "--wait", "--no-recreate", service)
