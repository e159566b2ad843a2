"""The lease ends with its process, with its broker, or when its time expires."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.fixtures import SecuredNats
from tests.support.polling import let_others_run, scripted_delay
from tests.support.timeouts import deadline
from tests.tool_runner.service.owner import Owner, owning
from tests.tool_runner.service.processes import WAIT_S, Runners, until, wait_for_end, wait_for_start

from banksman.bus.dead import dead_letters
from banksman.bus.messages import Message
from banksman.bus.names import RUNNERS, kv_subject
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.leases import IDLE_RENEW_EVERY_S, LEASE_TTL_S, RENEW_EVERY_S
from banksman.contracts import subjects
from banksman.contracts.calls import CallFinished, LateResult, RunnerLease
from banksman.contracts.errors import Unavailable
from banksman.contracts.ids import new_id
from banksman.deployment.users import AGENT, OPERATOR, TOOL_RUNNER
from banksman.runs.call_attempt import unknown_outcome
from banksman.runs.runners.lease import Lease, LeaseLost

STALL_S = 5.0
"""Seconds of a stall of the broker that no command notices."""


async def sleeping(owner: Owner, word: str) -> None:
    """A command that runs until it is killed."""
    await owner.accepted(owner.request("bash", command=f"sleep {word}"))
    await wait_for_start(word)


async def test_killed_runner_loses_its_lease_and_restarts_with_a_higher_epoch(
    runners: Runners, runners_nats: SecuredNats, backend: dict[str, Any]
) -> None:
    runner = runners.start(**backend)
    async with owning(runners_nats, runner) as owner:
        request = await owner.accepted(owner.request("bash", command="echo once >> log; sleep 7811.5"))
        await wait_for_start("7811.5")
        first = runner.identity
        runner.signal(signal.SIGKILL)
        await wait_for_end("7811.5", within_s=WAIT_S)
        await owner.lease_ended(within_s=WAIT_S)
        await runner.ended()
        await asyncio.to_thread(runner.start)
        assert runner.identity == {"runner": first["runner"], "epoch": first["epoch"] + 1}
        assert (await owner.send(request)).answer == "wrong_epoch"
        lease = await owner.lease()
        assert lease is not None and lease.value.runner_epoch == runner.epoch
        again = request.model_copy(update={"runner_epoch": runner.epoch})
        await owner.accepted(again)
        # Runs after the repeated request, whose attempt has started and so is not executed again.
        assert (await owner.bash("cat log")).content["stdout"] == "once\n"
        facts = await owner.slots.read(owner.tenant, request.attempt)
        assert facts.started is not None and facts.started.runner_epoch == first["epoch"]
        assert facts.finished is None


async def test_a_frozen_runner_kills_its_commands_and_starts_nothing_when_it_thaws(
    runners: Runners, runners_nats: SecuredNats, backend: dict[str, Any]
) -> None:
    runner = runners.start(**backend)
    async with owning(runners_nats, runner) as owner:
        await sleeping(owner, "7821.5")
        queued = await owner.accepted(owner.request("bash", command="touch effect"))
        runner.signal(signal.SIGSTOP)
        sent = owner.request("bash", command="touch effect")
        with pytest.raises(Unavailable):
            await owner.send(sent, timeout_s=0.2)
        await owner.lease_ended(within_s=WAIT_S)
        runner.signal(signal.SIGCONT)
        await wait_for_end("7821.5", within_s=WAIT_S)
        assert await runner.ended() not in (0, None)
        for request in (queued, sent):
            assert (await owner.slots.read(owner.tenant, request.attempt)).started is None
        await asyncio.to_thread(runner.start)
        assert (await owner.bash("ls")).content["stdout"] == ""


async def test_late_result_of_a_frozen_runner_becomes_a_note(
    runners: Runners, runners_nats: SecuredNats
) -> None:
    runner = runners.start()
    async with (
        owning(runners_nats, runner) as owner,
        await runners_nats.connect(OPERATOR) as operator,
    ):
        command = "sh -c 'until [ -e go ]; do sleep 0.02; done; echo seen too late' 7825.5"
        request = await owner.accepted(owner.request("bash", command=command))
        await owner.started(request)
        await wait_for_start("7825.5")
        runner.signal(signal.SIGSTOP)
        await owner.lease_ended(within_s=WAIT_S)
        (runner.root / owner.tenant / owner.conversation / "go").touch()
        await wait_for_end("7825.5", within_s=WAIT_S)
        declared = unknown_outcome(request.call.id, "the machine that ran it went away")
        finished = CallFinished(conversation_id=owner.conversation, attempt=request.attempt, result=declared)
        assert (await owner.slots.store_result(owner.tenant, finished)).fresh
        runner.signal(signal.SIGCONT)
        assert await runner.ended() not in (0, None)
        facts = await owner.slots.read(owner.tenant, request.attempt)
        assert facts.finished == finished and (await owner.result(request)) == declared
        subject = subjects.tool_result(owner.tenant, request.attempt)
        [letter] = [one.letter async for one in dead_letters(operator) if one.letter.subject == subject]
        assert letter.reason.startswith("late_result: ")
        note = LateResult.model_validate_json(base64.b64decode(letter.payload_base64))
        assert note.result.content["stdout"] == "seen too late\n"
        assert (note.runner, note.runner_epoch, note.digest) == (runner.id, 1, request.digest)


async def test_lease_expires_by_the_clock_alone(runners_nats: SecuredNats) -> None:
    """A lease that is not renewed, as in a frozen process, ends even if the broker still has the key."""
    registered = RunnerLease(runner=new_id("r"), runner_epoch=1)
    async with await runners_nats.connect(TOOL_RUNNER) as bus:
        lease = Lease(bus, registered, load=lambda: 0)
        assert not lease.holds
        await lease.take()
        assert lease.holds

        async def is_over() -> bool:
            return not lease.holds

        await until(is_over, within_s=LEASE_TTL_S[1])
        with pytest.raises(LeaseLost):
            await lease.keep()


async def test_call_that_begins_renews_the_lease_of_an_idle_holder(runners_nats: SecuredNats) -> None:
    """Otherwise a call may begin under a lease that is about to expire, and a stall of the broker ends it."""
    registered, active = RunnerLease(runner=new_id("r"), runner_epoch=1), set[str]()
    async with await runners_nats.connect(TOOL_RUNNER) as bus, await runners_nats.connect(AGENT) as agent:
        lease = Lease(bus, registered, load=active.__len__)
        await lease.take()
        stored = asyncio.Queue[datetime]()

        async def put(message: Message) -> None:
            stored.put_nowait(datetime.now(UTC))

        await agent.subscribe(subjects.stored(kv_subject(RUNNERS, registered.runner)), put)
        await agent.ready()
        keeping = asyncio.create_task(lease.keep())

        async def renewed_soon() -> bool:
            active.clear()
            async with deadline("the lease was not renewed", WAIT_S):
                before = await stored.get()
                active.add("call")
                lease.call_began()
                return (await stored.get() - before).total_seconds() < IDLE_RENEW_EVERY_S - 0.2

        # On a busy machine a single renewal may be late; without the tested behaviour every renewal is late.
        await until(renewed_soon, within_s=WAIT_S)
        await lease.release()
        await keeping


async def test_lasting_command_renews_the_lease_of_an_idle_runner(
    runners: Runners, runners_nats: SecuredNats, backend: dict[str, Any]
) -> None:
    runner = runners.start(**backend)
    async with owning(runners_nats, runner) as owner:
        stored = asyncio.Queue[float]()

        async def put(message: Message) -> None:
            stored.put_nowait(asyncio.get_running_loop().time())

        await owner.bus.subscribe(subjects.stored(kv_subject(RUNNERS, runner.id)), put)
        await owner.bus.ready()

        async def renewed_soon() -> bool:
            async with deadline("the lease was not renewed", WAIT_S):
                before = await stored.get()
                command = await owner.accepted(owner.request("bash", command="sleep 7826.5"))
                after = await stored.get()
            await owner.cancel(command)
            await owner.result(command)
            return after - before < IDLE_RENEW_EVERY_S - 0.2

        # On a busy machine a single renewal may be late; without the tested behaviour every renewal is late.
        await until(renewed_soon, within_s=WAIT_S)


async def test_holder_reports_soon_that_its_calls_have_ended(runners_nats: SecuredNats) -> None:
    """Otherwise owners place workspaces on other runners until the next renewal of an idle holder."""
    registered, active = RunnerLease(runner=new_id("r"), runner_epoch=1), {"call"}
    async with await runners_nats.connect(TOOL_RUNNER) as bus, await runners_nats.connect(AGENT) as agent:
        lease = Lease(bus, registered, load=active.__len__)
        stored = asyncio.Queue[tuple[float, int]]()

        async def put(message: Message) -> None:
            load = RunnerLease.model_validate_json(message.data).load
            stored.put_nowait((asyncio.get_running_loop().time(), load))

        await agent.subscribe(subjects.stored(kv_subject(RUNNERS, registered.runner)), put)
        await agent.ready()
        await lease.take()
        keeping = asyncio.create_task(lease.keep())

        async def reported_soon() -> bool:
            async with deadline("the lease did not report its calls and their end", WAIT_S):
                active.add("call")
                while (busy := await stored.get())[1] == 0:
                    pass
                active.clear()
                while (idle := await stored.get())[1] == 1:
                    busy = idle
            return idle[0] - busy[0] < IDLE_RENEW_EVERY_S - 0.2

        # On a busy machine a single renewal may be late; without the tested behaviour every renewal is late.
        await until(reported_soon, within_s=WAIT_S)
        await lease.release()
        await keeping


@pytest.mark.one_server
async def test_runner_without_a_broker_ends_itself_and_its_commands(own_runners: Runners) -> None:
    runner = own_runners.start()
    async with owning(own_runners.secured, runner) as owner:
        await sleeping(owner, "7831.5")
    own_runners.secured.server.pause()
    await wait_for_end("7831.5", within_s=LEASE_TTL_S[1] + 3.0)
    assert await runner.ended() not in (0, None)
    own_runners.secured.server.resume()


@pytest.mark.one_server
async def test_commands_survive_a_broker_that_is_frozen_for_five_seconds(own_runners: Runners) -> None:
    """A server whose disk stalls stores nothing for seconds; no other process can take over meanwhile."""
    runner = own_runners.start()
    async with owning(own_runners.secured, runner) as owner:
        request = await owner.accepted(owner.request("bash", command="sleep 7.25; echo done"))
        await wait_for_start("7.25")
        own_runners.secured.server.pause()
        await scripted_delay(STALL_S)
        own_runners.secured.server.resume()
        assert (await owner.result(request)).content["stdout"] == "done\n"
        lease = await owner.lease()
        assert lease is not None and lease.value.runner_epoch == 1


async def test_call_that_a_fence_ends_has_an_unknown_outcome(
    runners: Runners, runners_nats: SecuredNats, backend: dict[str, Any]
) -> None:
    """The model must not read `cancelled` of a command that may have had effects."""
    runner = runners.start(**backend)
    async with owning(runners_nats, runner) as owner, await runners_nats.connect(OPERATOR) as operator:
        request = await owner.accepted(owner.request("bash", command="echo effect; sleep 7826.5"))
        await wait_for_start("7826.5")
        assert await Bucket(operator, RUNNERS, RunnerLease).delete(runner.id)
        result = await owner.result(request)
        assert result.error_kind == "unknown_outcome" and result.is_error
        assert "may have had effects" in str(result.content["error"])
        assert result.content["stdout"] == "effect\n"
        await wait_for_end("7826.5", within_s=WAIT_S)
        assert await runner.ended() not in (0, None)


@pytest.mark.one_server
async def test_release_waits_for_the_renewal_in_flight(own_runners: Runners) -> None:
    """A clean stop ends the lease at once, and sends nothing that this user may not send."""
    secured, registered = own_runners.secured, RunnerLease(runner=new_id("r"), runner_epoch=1)
    async with await secured.connect(TOOL_RUNNER) as bus, await secured.connect(AGENT) as agent:
        leases = Bucket(agent, RUNNERS, RunnerLease)
        lease = Lease(bus, registered, load=lambda: 0)
        await lease.take()
        keeping = asyncio.create_task(lease.keep())
        secured.server.pause()
        await scripted_delay(1.5 * RENEW_EVERY_S)
        releasing = asyncio.create_task(lease.release())
        await let_others_run()
        secured.server.resume()
        await releasing
        await keeping
        assert await leases.get(registered.runner) is None
        assert bus.stats.forbidden == 0


async def test_a_run_and_a_stop_of_a_runner_log_no_error(runners: Runners, runners_nats: SecuredNats) -> None:
    runner = runners.start()
    async with owning(runners_nats, runner) as owner:
        assert (await owner.bash("echo done")).content["stdout"] == "done\n"
        runner.signal(signal.SIGTERM)
        assert await runner.ended() == 0
        assert await owner.lease() is None
    lines = [json.loads(line) for line in runner.log.splitlines()]
    assert [line["event"] for line in lines if line["level"] in ("error", "critical")] == []
    assert "ermissions" not in runner.log


def test_two_processes_never_share_a_volume(runners: Runners) -> None:
    runner = runners.start()
    with pytest.raises(RuntimeError, match="two runners cannot share a directory"):
        runners.start(root=runner.root)
    assert runner.epoch == 1


def test_runners_without_a_directory_of_their_own_share_a_volume(runners: Runners) -> None:
    """Containers of a scaled service have the same settings and the same volume."""
    volume = runners.directory()
    shared: dict[str, Any] = {"BANKSMAN_DATA_DIR": str(volume), "BANKSMAN_TOOL_RUNNER__WORKSPACES_DIR": ""}

    def identities() -> list[tuple[str, int]]:
        files = sorted(volume.glob("workspaces*/.runner.json"))
        stored = [json.loads(file.read_text()) for file in files]
        return [(one["runner"], one["epoch"]) for one in stored]

    scaled = [runners.start(**shared) for _ in range(2)]
    first, second = identities()
    for runner in scaled:
        runner.signal(signal.SIGKILL)
        runner.wait()
    scaled[0].start()
    assert first[0] != second[0]
    assert identities() == [(first[0], 2), second]


async def test_runner_with_a_failed_self_test_refuses_calls_with_the_reason(
    runners: Runners, runners_nats: SecuredNats, tmp_path: Path
) -> None:
    runner = runners.make(PATH=str(tmp_path))
    runner.start(ready=False)
    readiness = runner.readiness()
    assert readiness is not None and not readiness["ready"]
    assert "bubblewrap" in readiness["problems"]["sandbox"]
    async with owning(runners_nats, runner) as owner:
        lease = await owner.lease()
        assert lease is not None and not lease.value.serving
        assert "bubblewrap" in (lease.value.problem or "")
        reply = await owner.send(owner.request("bash", command="true"))
        assert reply.answer == "refused" and "bubblewrap" in (reply.reason or "")


async def test_stopping_runner_finishes_its_calls_and_accepts_no_more(
    runners: Runners, runners_nats: SecuredNats, backend: dict[str, Any]
) -> None:
    runner = runners.start(**backend)
    async with owning(runners_nats, runner) as owner:
        request = await owner.accepted(owner.request("bash", command="sleep 2.497; echo done"))
        await wait_for_start("2.497")
        runner.signal(signal.SIGTERM)

        async def is_draining() -> bool:
            lease = await owner.lease()
            return lease is not None and not lease.value.serving

        await until(is_draining, WAIT_S)
        assert (await owner.send(owner.request("bash", command="true"))).answer == "busy"
        assert (await owner.result(request)).content["stdout"] == "done\n"
        assert await runner.ended() == 0
        assert await owner.lease() is None


async def test_call_longer_than_the_drain_is_killed_and_has_a_result(
    runners: Runners, runners_nats: SecuredNats, backend: dict[str, Any]
) -> None:
    runner = runners.start(BANKSMAN_TOOL_RUNNER__DRAIN_S="0.2", **backend)
    async with owning(runners_nats, runner) as owner:
        request = await owner.accepted(owner.request("bash", command="echo early; sleep 7841.5"))
        await wait_for_start("7841.5")
        runner.signal(signal.SIGTERM)
        result = await owner.result(request)
        assert (result.error_kind, result.content["stdout"]) == ("cancelled", "early\n")
        await wait_for_end("7841.5", within_s=WAIT_S)
        assert await runner.ended() == 0


async def test_runner_with_its_own_key_serves_under_its_own_id(north: Runners) -> None:
    runner = north.start(user="tool-runner-north", BANKSMAN_TOOL_RUNNER__RUNNER="north")
    async with owning(north.secured, runner) as owner:
        assert (await owner.bash("echo mine")).content["stdout"] == "mine\n"
        lease = await owner.lease()
        assert lease is not None and lease.value.runner == "north"
    south = north.make(user="tool-runner-north", BANKSMAN_TOOL_RUNNER__RUNNER="south")
    with pytest.raises(RuntimeError, match=r"may not publish"):
        south.start()
