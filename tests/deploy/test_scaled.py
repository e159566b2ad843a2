"""compose.yaml with two containers of each service that may be scaled (R114)."""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import replace

import pytest

from tests.deploy.conftest import WAIT_TIMEOUT_S, bash_in
from tests.deploy.stack import Stack
from tests.support.client import Client
from tests.support.paths import ROOT
from tests.support.supervised import cleaned_up_by

SCALED = (("gateway", "gateway-2"), ("agent",), ("tool-runner", "tool-runner-2"), ("workflows",))
"""What runs in two containers: of one service, or of two services with their own keys."""
FILE = ROOT / "deploy" / "docker" / "compose.scaled.yaml"


@pytest.fixture(scope="module")
def scaled(built: Stack) -> Generator[Stack]:
    """The whole system with two containers of each service, every one ready."""
    environment = {**built.environment, "BANKSMAN_PORT_2": str(built.engine.free_port(built.port))}
    project = f"banksman-scaled-{os.getpid()}"
    stack = replace(built.with_file(FILE), environment=environment, project=project)
    remove = ("down", "--volumes", "--remove-orphans", "--timeout", "30")
    with cleaned_up_by(
        [*stack.compose_command_property, *remove], {**environment, "COMPOSE_PROJECT_NAME": project}
    ):
        try:
            stack.start()
            yield stack
        finally:
            stack.compose(*remove)


def running(stack: Stack, *services: str) -> list[str]:
    """Return the ids of the containers of some services that run."""
    found = [one for one in stack.get_containers() if one.Service in services and one.State == "running"]
    return [container.ID for container in found if container.ID]


def gateways(stack: Stack) -> list[str]:
    """Return the addresses of the gateways that run."""
    ports = [stack.engine.output("port", container, "8080/tcp") for container in running(stack, *SCALED[0])]
    return [f"http://{port}" for port in ports]


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_runs_continue_at_both_gateways_after_one_of_each_service_was_killed(scaled: Stack) -> None:
    """A run begins at one gateway and waits for approval; at the other gateway it is decided and ends.

    Then the killed containers start again and the others are killed: each of them executes runs alone.
    """
    before = [len(running(scaled, *pair)) for pair in SCALED]
    first, second = gateways(scaled)
    async with Client.connected(first, timeout_s=WAIT_TIMEOUT_S) as client:
        conversation = await client.create()
        run = await client.chat(conversation, "run `echo first; hostname`")
        await client.approval_request(run)

    killed = [running(scaled, *pair)[0] for pair in SCALED]
    kill(scaled, killed)
    left = gateways(scaled)
    async with Client.connected(left[0], timeout_s=WAIT_TIMEOUT_S) as client:
        await client.request("subscribe", conversation_id=conversation, after_seq=0)
        await client.approve(run)
        ended = await client.finished(run)
        others = [await bash_in(client, await client.create(), f"echo {n}") for n in range(4)]

    assert before == [2, 2, 2, 2]
    assert left == [second]
    assert ended["status"] == "completed", ended
    assert [call["result"]["stdout"] for call in ended["tool_calls"]] == ["first\nsandbox\n"]
    assert [one["stdout"] for one in others] == ["0\n", "1\n", "2\n", "3\n"]

    survivors = [running(scaled, *pair)[0] for pair in SCALED]
    scaled.compose("up", "--detach", "--wait", "--no-recreate")
    kill(scaled, survivors)
    async with Client.connected(gateways(scaled)[0], timeout_s=WAIT_TIMEOUT_S) as client:
        last = await bash_in(client, await client.create(), "echo last")

    assert {*killed} == {container for pair in SCALED for container in running(scaled, *pair)}
    assert last["stdout"] == "last\n"


def kill(stack: Stack, containers: list[str]) -> None:
    """Kill containers, which the engine then does not start again."""
    stack.engine.output("update", "--restart", "no", *containers)
    stack.engine.output("kill", *containers)
