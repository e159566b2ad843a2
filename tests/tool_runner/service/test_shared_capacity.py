"""Tenants share a runner: long calls of one delay no call of another."""

from __future__ import annotations

from collections import Counter

from tests.support.fixtures import SecuredNats
from tests.tool_runner.service.owner import owning
from tests.tool_runner.service.processes import Runners

from banksman.contracts.ids import new_id

COMMANDS, QUEUE = 4, 16
LENT = 3, 12
"""Commands and places of the queue that a tenant gets while it is alone: three quarters."""


async def test_searches_take_places_of_commands(runners: Runners, runners_nats: SecuredNats) -> None:
    """A search starts a sandbox too, and its query can occupy a core until its time limit."""
    runner = runners.start(
        BANKSMAN_TOOL_RUNNER__LIMITS=f'{{"sandbox": {{"max_concurrent_calls": {COMMANDS}}}}}',
    )
    async with owning(runners_nats, runner) as flood, owning(runners_nats, runner) as quiet:
        requests = [
            request.model_copy(update={"conversation_id": new_id("c")})
            for request in [
                *(flood.request("bash", command="sleep 600") for _ in range(LENT[0])),
                flood.request("search_code", query="crane"),
            ]
        ]
        *commands, search = [await flood.accepted(request) for request in requests]
        for request in commands:
            await flood.started(request)
        # This search is requested later, and ends.
        other = await quiet.call("search_code", query="crane")
        waiting = await flood.slots.read(flood.tenant, search.attempt)
        for request in commands:
            await flood.cancel(request)
        found = await flood.result(search)

    assert waiting.finished is None
    assert (found.is_error, other.is_error) == (False, False)


async def test_a_tenant_that_floods_a_runner_leaves_commands_and_queue_for_others(
    runners: Runners, runners_nats: SecuredNats
) -> None:
    """Its further calls get `busy`, which their owners repeat; the other tenant's command runs at once."""
    runner = runners.start(
        BANKSMAN_TOOL_RUNNER__QUEUE_CAPACITY=str(QUEUE),
        BANKSMAN_TOOL_RUNNER__LIMITS=f'{{"sandbox": {{"max_concurrent_calls": {COMMANDS}}}}}',
    )
    async with owning(runners_nats, runner) as flood, owning(runners_nats, runner) as quiet:
        requests = [
            flood.request("bash", command="sleep 600").model_copy(update={"conversation_id": new_id("c")})
            for _ in range(2 * QUEUE)
        ]
        replies = Counter([(await flood.send(request)).answer for request in requests])
        # They wait in order of arrival, each in a workspace of its own.
        for request in requests[: LENT[0]]:
            await flood.started(request)
        results = [await quiet.bash("echo here") for _ in range(3)]
        started = [
            request for request in requests if (await flood.slots.read(flood.tenant, request.attempt)).started
        ]
        for request in requests[: LENT[1]]:
            await flood.cancel(request)

    assert replies == {"accepted": LENT[1], "busy": 2 * QUEUE - LENT[1]}
    assert [result.content["stdout"] for result in results] == ["here\n"] * 3
    assert started == requests[: LENT[0]]
