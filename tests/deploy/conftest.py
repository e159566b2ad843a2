"""The deployment of compose.yaml, built and started once for all tests of this folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from tests.deploy.stack import Stack, stack_of
from tests.support.client import Client
from tests.support.docker_engine import DockerEngine
from tests.support.supervised import cleaned_up_by

WAIT_TIMEOUT_S = 60.0
"""Time limit in seconds for actions in the containers, on a busy machine."""


@pytest.fixture(scope="session")
def built(docker_engine: DockerEngine, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """All images, built as by `make compose` behind a proxy: certificates and pip settings are secrets."""
    stack = stack_of(
        docker_engine, base_image, tmp_path_factory.mktemp("build"), f"banksman-test-{os.getpid()}"
    )
    stack.compose("--profile", "*", "build")
    return stack


@pytest.fixture(scope="package")
def stack(built: Stack) -> Generator[Stack]:
    """The whole system in containers, every service ready."""
    whole = replace(built, profiles=["*"])
    remove = ("down", "--volumes", "--remove-orphans", "--timeout", "30")
    environment = {**built.environment, "COMPOSE_PROJECT_NAME": built.project}
    with cleaned_up_by([*whole.compose_command_property, *remove], environment):
        try:
            built.start()
            yield built
        finally:
            whole.compose(*remove)


async def bash(stack: Stack, command: str) -> dict[str, Any]:
    """Run an approved command in a new conversation through the published port; return its result."""
    async with Client.connected(stack.url, timeout_s=WAIT_TIMEOUT_S) as client:
        return await bash_in(client, await client.create(), command)


async def bash_in(client: Client, conversation: str, command: str) -> dict[str, Any]:
    """Run an approved command in an existing conversation; return its result."""
    run = await client.chat(conversation, f"run `{command}`")
    await client.approve(run)
    (call,) = (await client.finished(run))["tool_calls"]
    return dict(call["result"])


async def ready(stack: Stack, service: str) -> None:
    """Wait until the only container of a service is healthy."""
    await asyncio.to_thread(stack.wait_ready, service)
