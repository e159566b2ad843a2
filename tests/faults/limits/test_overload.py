"""Overload: refused requests get the time to retry after, accepted work completes (P13)."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import httpx
import pytest

from banksman.bus.connection import Bus
from banksman.bus.jetstream import call, purge_subject
from banksman.bus.names import RUNS, api
from banksman.contracts import subjects
from banksman.contracts.subjects import ANY
from banksman.gateway.quotas.backlog import COUNT_VALID_S
from banksman.gateway.settings import GatewaySettings
from banksman.runtime.tenants import TenantLimits, TenantSettings
from tests.faults.chaos.conftest import Stage
from tests.faults.limits.conftest import MAY_WAIT
from tests.gateway.conftest import TOKENS, GatewayFactory, Served, gateway_on, key_of
from tests.support.nats import NatsServer
from tests.support.polling import eventually, scripted_delay
from tests.support.scripted_models import Gate, ScriptedReply
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = pytest.mark.timeout(180)

REQUESTED = 3 * MAY_WAIT
IN_FLIGHT = MAY_WAIT
"""Concurrent requests: the maximum accepted above the limit, because they are not counted yet."""


@pytest.mark.asyncio(loop_scope="session")
async def test_excess_runs_are_refused_and_no_accepted_run_is_lost(stage: Stage) -> None:
    """P13, A34: 202 means that the run completes, 429 names the seconds to wait; no other status occurs."""
    name = stage.model.play("flood", [ScriptedReply(text="Fine.", gate=Gate(name="flood"))], at_end="repeat")
    limit = asyncio.Semaphore(IN_FLIGHT)
    async with httpx.AsyncClient(base_url=stage.fleet.urls[0], timeout=WAIT_TIMEOUT_S * 2) as http:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_limited(http, f"openai:{name}", limit)) for _ in range(REQUESTED)]
        responses = [task.result() for task in tasks]
        stage.model.open_gate("flood")
        accepted = [response.json()["run_id"] for response in responses if response.status_code == 202]
        ended = await _ended(http, accepted)
        # The last count of waiting runs is used for a moment longer.
        await scripted_delay(COUNT_VALID_S * 2)
        again = await _run_with_retries(http, f"openai:{name}")
        # The tests of this stage share its queue.
        await _ended(http, [again.json()["run_id"]])

    refused = [response for response in responses if response.status_code != 202]
    assert {response.status_code for response in refused} == {429}
    assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
    assert {response.json()["error"]["code"] for response in refused} == {"rate_limited"}
    # The gateway counts stored runs; accepted requests that are not stored yet come in addition.
    assert MAY_WAIT <= len(accepted) <= MAY_WAIT + IN_FLIGHT + 4
    assert Counter(run["status"] for run in ended) == {"completed": len(accepted)}
    assert again.status_code == 202


async def _limited(http: httpx.AsyncClient, model: str, limit: asyncio.Semaphore) -> httpx.Response:
    async with limit:
        return await _run_of_its_own(http, model)


async def _run_with_retries(http: httpx.AsyncClient, model: str) -> httpx.Response:
    """Return the response to a client that retries after Retry-After: waiting runs are counted
    periodically."""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while (response := await _run_of_its_own(http, model)).status_code == 429:  # after the named time
            await scripted_delay(float(response.headers["retry-after"]))
        return response


async def _ended(http: httpx.AsyncClient, run_ids: list[str]) -> list[dict[str, Any]]:
    return [(await http.get(f"/context/runs/{run_id}", params={"wait_s": 60})).json() for run_id in run_ids]


async def test_a_full_queue_refuses_runs_until_there_is_space(
    own_nats: NatsServer, own_bus: Bus, tenant: str
) -> None:
    """P13, A37: the stream of runs is full; both interfaces report it within the request."""
    await _bound_runs(own_bus, 1)
    async with gateway_on(own_nats, own_bus, tenant) as gateway, gateway.http as http:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        url = f"/context/conversations/{conversation}/runs"
        refused = await http.post(url, json={"content": "go"}, headers={"idempotency-key": "k1"})
        async with gateway.socket() as socket:
            frame = await socket.request("chat.send", conversation_id=conversation, content="go")
        await _bound_runs(own_bus, 100_000_000)
        taken = await http.post(url, json={"content": "go"}, headers={"idempotency-key": "k1"})

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
    assert int(refused.headers["retry-after"]) >= 1
    assert (frame["type"], frame["code"], frame["retryable"]) == ("error", "busy", True)
    assert frame["retry_after_s"] > 0
    assert taken.status_code == 202
    assert await purge_subject(own_bus, RUNS, subjects.run_work(tenant, ANY)) == 1


async def _bound_runs(bus: Bus, max_bytes: int) -> None:
    config = (await call(bus, api("STREAM.INFO", RUNS)))["config"]
    await call(bus, api("STREAM.UPDATE", RUNS), {**config, "max_bytes": max_bytes})


async def test_only_the_key_over_its_request_rate_is_refused(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    """P13, A40: 429 with Retry-After for one user; the other's requests and health checks succeed."""
    keys = (key_of("alice", tenant), key_of("bob", "another"))
    async with start_gateway(keys=keys, requests_per_s=1) as gateway:
        alice = await _request_repeatedly(gateway, "alice", 40)
        bob = await _request_repeatedly(gateway, "bob", 2)
        async with gateway.http as http:
            health = await http.get("/healthz")

    refused = [response for response in alice if response.status_code == 429]
    assert refused
    assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
    assert {response.status_code for response in bob} == {200}
    assert health.status_code == 200


async def test_a_tenant_that_fills_its_share_of_the_queue_leaves_places_for_others(
    own_nats: NatsServer, own_bus: Bus, tenant: str
) -> None:
    """The share is three quarters of eight places; further runs get 429 with the time to retry after."""
    keys = (key_of("alice", tenant), key_of("bob", "another"))
    async with gateway_on(own_nats, own_bus, tenant, keys=keys, max_waiting_runs=8) as gateway:
        alice = [await _starts(gateway, "alice") for _ in range(10)]
        bob = await _starts(gateway, "bob")

    assert [response.status_code for response in alice] == [202] * 6 + [429] * 4
    assert {response.json()["error"]["code"] for response in alice[6:]} == {"rate_limited"}
    assert all(int(response.headers["retry-after"]) >= 1 for response in alice[6:])
    assert bob.status_code == 202


async def test_a_named_tenant_has_a_limit_of_its_own(own_nats: NatsServer, own_bus: Bus, tenant: str) -> None:
    keys = (key_of("alice", tenant), key_of("bob", "another"))
    limits = TenantSettings(named={tenant: TenantLimits(waiting_runs=2)})
    async with gateway_on(own_nats, own_bus, tenant, keys=keys, tenants=limits) as gateway:
        alice = [(await _starts(gateway, "alice")).status_code for _ in range(3)]
        bob = [(await _starts(gateway, "bob")).status_code for _ in range(3)]

    assert (alice, bob) == ([202, 202, 429], [202] * 3)


async def _starts(gateway: Served, user: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {TOKENS[user]}"}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=WAIT_TIMEOUT_S) as http:
        return await _run_of_its_own(http, "demo:demo")


async def _request_repeatedly(gateway: Served, user: str, times: int) -> list[httpx.Response]:
    headers = {"authorization": f"Bearer {TOKENS[user]}"}
    async with gateway.http as http:
        return [await http.get("/context/conversations", headers=headers) for _ in range(times)]


def test_the_request_rate_is_limited_only_with_keys(tenant: str) -> None:
    """P13: the default limits each key; access without a key is for one user on the machine."""
    guarded, keyless = GatewaySettings(keys=(key_of("alice", tenant),)), GatewaySettings()

    assert (guarded.rate, keyless.rate) == (100.0, None)
    assert guarded.model_copy(update={"requests_per_s": 0}).rate is None


async def test_every_frame_of_a_flood_gets_its_own_response(start_gateway: GatewayFactory) -> None:
    """P13: accepted or refused, and the refusal names the frame; none is dropped silently."""
    async with start_gateway(frames_per_s=1) as gateway, gateway.socket() as socket:
        sent = [await socket.send("ping", t=number) for number in range(60)]
        responses: dict[str, dict[str, Any]] = {}
        while len(responses) < len(sent):
            frame = await socket.until(lambda frame: "reply_to" in frame)
            responses[frame["reply_to"]] = frame

    assert set(responses) == set(sent)
    kinds = Counter(frame["type"] for frame in responses.values())
    assert kinds["pong"] >= 1 and kinds["error"] >= 1
    refused = [frame for frame in responses.values() if frame["type"] == "error"]
    assert {(frame["code"], frame["retryable"]) for frame in refused} == {("rate_limited", True)}
    assert all(frame["retry_after_s"] > 0 for frame in refused)


# -- without agents ----------------------------------------------------------------------------------------


@pytest.mark.asyncio(loop_scope="session")
async def test_without_agents_runs_wait_up_to_a_limit_and_complete_afterwards(stage: Stage) -> None:
    """P13: the depth of the queue is readable, excess requests get Retry-After, nothing is lost."""
    name = stage.model.play("nobody", [ScriptedReply(text="At last.")], at_end="repeat")
    agent, url = stage.fleet["agent-1"], stage.fleet.urls[0]
    async with httpx.AsyncClient(base_url=url, timeout=WAIT_TIMEOUT_S * 2, trust_env=False) as http:
        await _until_waiting(stage, 0)
        # The first count may have been taken before the last run of an earlier test was stored.
        await scripted_delay(COUNT_VALID_S * 2)
        await _until_waiting(stage, 0)
        await agent.stop()
        responses = [await _run_of_its_own(http, f"openai:{name}") for _ in range(MAY_WAIT + 5)]
        accepted = [response.json()["run_id"] for response in responses if response.status_code == 202]
        refused = [response for response in responses if response.status_code != 202]
        await _until_waiting(stage, len(accepted))
        async with stage.connected() as client:
            conversation = await client.create(f"openai:{name}")
            frame = await client.request("chat.send", conversation_id=conversation, content="go")
        agent.start()
        await stage.fleet.ready()
        ended = await _ended(http, accepted)
        # The count may have been taken when most of them still waited.
        await scripted_delay(COUNT_VALID_S * 2)
        again = await _run_of_its_own(http, f"openai:{name}")

    assert len(accepted) == MAY_WAIT
    assert {(one.status_code, one.json()["error"]["code"]) for one in refused} == {(429, "rate_limited")}
    assert all(int(one.headers["retry-after"]) >= 1 for one in refused)
    assert (frame["type"], frame["code"], frame["retryable"]) == ("error", "rate_limited", True)
    assert frame["retry_after_s"] > 0
    assert Counter(run["status"] for run in ended) == {"completed": len(accepted)}
    assert again.status_code == 202


async def _run_of_its_own(http: httpx.AsyncClient, model: str) -> httpx.Response:
    made = await http.post("/context/conversations", json={"model": model})
    url = f"/context/conversations/{made.json()['conversation_id']}/runs"
    return await http.post(url, json={"content": "go"})


async def _until_waiting(stage: Stage, number: int) -> None:
    """Wait until the gateway reports this number of waiting runs."""
    seen = set[float]()

    async def is_reported() -> bool:
        seen.add(waiting := await _waiting_runs(stage))
        return waiting == number

    def wrong() -> str:
        return f"{sorted(seen)} runs wait instead of {number}"

    await eventually(is_reported, WAIT_TIMEOUT_S * 2, interval_s=0.1, failure=wrong)


async def _waiting_runs(stage: Stage) -> float:
    """Return the metrics of the gateway."""
    url = stage.fleet["gateway-1"].spec.ready_url.replace("/readyz", "/metrics")
    found = re.search(r"^banksman_waiting_runs (\S+)$", (await stage.fleet.http.get(url)).text, re.MULTILINE)
    assert found is not None
    return float(found[1])
