"""The profile `docker-sandbox` of compose.yaml: the tool-runner and each workspace have a container."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.deploy.stack import Stack
from tests.support.privileged import require

from .conftest import bash


@pytest.fixture
def with_docker(stack: Stack) -> Generator[Stack]:
    """The stack with the tool-runner of this profile; restored afterwards."""
    socket = Path(stack.engine.host.removeprefix("unix://"))
    require("an engine with a local socket", socket.is_socket(), "the profile docker-sandbox")
    engine = {"DOCKER_SOCKET": str(socket), "DOCKER_GID": str(socket.stat().st_gid)}
    changed = replace(stack, environment={**stack.environment, **engine}, profiles=["docker-sandbox"])
    try:
        changed.compose("up", "--detach", "--wait", "--scale", "tool-runner=0")
        yield changed
    finally:
        changed.compose("rm", "--force", "--stop", "tool-runner-docker")
        stack.compose("up", "--detach", "--wait", "tool-runner")


async def test_command_runs_in_the_container_of_its_workspace_and_its_files_remain(
    with_docker: Stack,
) -> None:
    result = await bash(with_docker, "ls /.dockerenv; echo kept > kept; cat kept; ls -A /keys/tool-runner")

    assert result["stdout"].split() == ["/.dockerenv", "kept"], result
