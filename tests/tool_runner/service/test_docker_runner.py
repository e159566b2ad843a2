"""The tool-runner with the Docker backend: calls, and the containers after each kind of end."""

from __future__ import annotations

import asyncio
import base64
import random
import signal
from typing import Any

import pytest
from tests.support.docker_engine import DockerEngine
from tests.support.fixtures import SecuredNats
from tests.support.polling import scripted_delay
from tests.tool_runner.service.owner import Owner, owning
from tests.tool_runner.service.processes import (
    WAIT_S,
    RunnerProcess,
    Runners,
    running,
    until,
    wait_for_end,
    wait_for_start,
)

from banksman.bus.names import OUTPUTS
from banksman.bus.secrets import opened
from banksman.bus.storage.objects import Objects
from banksman.contracts.ids import new_id
from banksman.contracts.runner_requests import FileWrite
from banksman.deployment.users import GATEWAY_FILES
from banksman.runtime.failpoints import TESTING_VARIABLE, VARIABLE, Failpoint

pytestmark = pytest.mark.timeout(180)

CALLS = 4
"""Calls in flight at the moment of a kill."""


async def containers_end(engine: DockerEngine, runner: RunnerProcess) -> None:
    """Wait until no container mounts a workspace of this runner."""

    async def none() -> bool:
        listed = await asyncio.to_thread(engine.output, "ps", "--all", "--quiet")
        if not listed:
            return True
        described = await asyncio.to_thread(engine.docker, "inspect", *listed.split())
        return str(runner.root) not in described.stdout

    await until(none, 2 * WAIT_S)


async def test_calls_files_and_outputs_share_one_workspace(
    runners: Runners, runners_nats: SecuredNats, docker: dict[str, Any]
) -> None:
    runner = runners.start(**docker)
    async with owning(runners_nats, runner) as owner:
        await owner.call("write_file", path="src/words.txt", content="b\na\n")
        sent = base64.b64encode(b"c\n").decode()
        await owner.file(
            FileWrite(path="more.txt", upload=new_id("u"), offset=0, data_base64=sent, last=True)
        )
        sorted_words = await owner.bash("sort src/words.txt more.txt | tee sorted.txt; echo err >&2; exit 3")
        assert (sorted_words.content["stdout"], sorted_words.exit_code) == ("a\nb\nc\n", 3)
        assert (await owner.call("read_file", path="sorted.txt")).content["content"] == "a\nb\nc\n"
        long = await owner.bash("seq 20000")
        assert long.output_ref is not None and long.output_key is not None
        async with await runners_nats.connect(GATEWAY_FILES) as files:
            stored = await Objects(files, OUTPUTS).get(long.output_ref, deadline_s=WAIT_S)
        whole = opened(stored, long.output_key, long.output_ref)
        assert whole is not None and whole.split()[-1] == b"20000"
        request = await owner.accepted(owner.request("bash", command="echo started; sleep 7861.5"))
        await wait_for_start("7861.5")
        await owner.cancel(request)
        cancelled = await owner.result(request)
        assert (cancelled.error_kind, cancelled.content["stdout"]) == ("cancelled", "started\n")
        assert not running("7861.5")


async def test_containers_of_a_killed_runner_end_and_workspaces_remain(
    runners: Runners, runners_nats: SecuredNats, docker: dict[str, Any], docker_engine: DockerEngine
) -> None:
    runner = runners.start(**docker)
    async with owning(runners_nats, runner) as owner:
        await owner.accepted(owner.request("bash", command="touch kept; sleep 7862.5"))
        await wait_for_start("7862.5")
        runner.signal(signal.SIGKILL)
        await wait_for_end("7862.5", within_s=WAIT_S)
        await runner.ended()
        await containers_end(docker_engine, runner)
        await asyncio.to_thread(runner.start)
        assert (await owner.bash("ls")).content["stdout"] == "kept\n"


@pytest.mark.parametrize("seed", range(2))
async def test_restarted_runner_removes_containers_that_were_starting(
    runners: Runners,
    runners_nats: SecuredNats,
    docker: dict[str, Any],
    docker_engine: DockerEngine,
    seed: int,
) -> None:
    """A container that was created and not yet attached is found only by the next start."""
    moments = random.Random(seed)
    runner = runners.start(BANKSMAN_TOOL_RUNNER__LIMITS__SANDBOX__MAX_CONCURRENT_CALLS=str(CALLS), **docker)
    async with owning(runners_nats, runner) as owner:
        async with asyncio.TaskGroup() as calls:
            for _ in range(CALLS):
                calls.create_task(start_elsewhere(owner))
        await scripted_delay(moments.uniform(0, 1))
        runner.signal(signal.SIGKILL)
        await runner.ended()
        await wait_for_end("7863.5", within_s=WAIT_S)
        await asyncio.to_thread(runner.start)
        await containers_end(docker_engine, runner)


async def start_elsewhere(owner: Owner) -> None:
    request = owner.request("bash", command="sleep 7863.5")
    await owner.accepted(request.model_copy(update={"conversation_id": new_id("c")}))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("point", "claimed", "executed", "ended"),
    [
        ("runner.before_claim", "later", 1, True),
        ("runner.after_claim", "before", 0, False),
        ("runner.begin", "before", 0, False),
        ("runner.running", "before", 1, False),
        ("runner.end", "before", 1, False),
        ("runner.result_stored", "before", 1, True),
    ],
)
async def test_docker_runner_killed_anywhere_executes_a_call_at_most_once(
    runners: Runners,
    runners_nats: SecuredNats,
    docker: dict[str, Any],
    point: Failpoint,
    claimed: str,
    executed: int,
    ended: bool,
) -> None:
    """P2, A03: a repeated request executes only calls whose start is not recorded."""
    armed: dict[str, Any] = {VARIABLE: f"{point}:kill", TESTING_VARIABLE: "1"}
    runner = runners.start(**docker, **armed)
    async with owning(runners_nats, runner) as owner:
        died = runner.epoch
        request = owner.request("bash", command="echo once >> ledger; echo done; sleep 0.5")
        await owner.accepted(request)
        assert await runner.ended() == -signal.SIGKILL
        back = runners.make(root=runner.root, **docker)
        await asyncio.to_thread(back.start)
        await owner.accepted(request.model_copy(update={"runner_epoch": back.epoch}))
        ledger = await owner.bash("cat ledger 2>/dev/null | wc -l")
        facts = await owner.slots.read(owner.tenant, request.attempt)
    assert ledger.content["stdout"] == f"{executed}\n"
    assert facts.started is not None
    assert (facts.started.runner_epoch == died) == (claimed == "before")
    assert (facts.finished is not None) == ended


async def test_stopping_runner_removes_its_containers(
    runners: Runners, runners_nats: SecuredNats, docker: dict[str, Any], docker_engine: DockerEngine
) -> None:
    runner = runners.start(**docker)
    async with owning(runners_nats, runner) as owner:
        await owner.bash("true")
        runner.signal(signal.SIGTERM)
        assert await runner.ended() == 0
        await containers_end(docker_engine, runner)


async def test_runner_without_an_engine_refuses_calls_with_the_reason(
    runners: Runners, runners_nats: SecuredNats
) -> None:
    runner = runners.make(
        BANKSMAN_TOOL_RUNNER__SANDBOX="docker", DOCKER_HOST="unix:///run/no-such-engine.sock"
    )
    runner.start(ready=False)
    readiness = runner.readiness()
    assert (
        readiness is not None and "no-such-engine.sock does not respond" in readiness["problems"]["sandbox"]
    )
    async with owning(runners_nats, runner) as owner:
        reply = await owner.send(owner.request("bash", command="true"))
        assert reply.answer == "refused" and "no-such-engine" in (reply.reason or "")
