"""The tenants as an operator sees them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
from tests.gateway.conftest import TOKENS, GatewayFactory, key_of

from banksman.bus.connection import Bus
from banksman.bus.names import USAGE
from banksman.bus.publish import durable
from banksman.bus.storage.kv import Bucket
from banksman.contracts.ids import new_id
from banksman.contracts.subjects import SERVED, approval_reply, approval_request, run_work, workflow_run
from banksman.contracts.usage import CommitUsage, UsageTotals, passthrough_key, usage_key
from banksman.runtime.tenants import TenantLimits, TenantSettings

TENANTS = "/operator/tenants"


async def test_an_operator_sees_usage_keys_and_limits_of_each_tenant_page_by_page(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    """R31, R34: tenants with runs, with passthrough alone, with a key alone, and with limits alone."""
    runs, passed, keyed, limited = (f"{tenant}-{name}" for name in ("a", "b", "c", "d"))
    totals = UsageTotals().with_commit(7, datetime.now(UTC), CommitUsage(2, 400, 100, 0.75), 1_000)
    usage = Bucket(bus, USAGE, UsageTotals)
    await usage.put(usage_key(runs), totals)
    await usage.put(passthrough_key(runs), totals)
    await usage.put(passthrough_key(passed), totals)
    await stored_runs(bus, runs)
    past = datetime.now(UTC) - timedelta(seconds=1)
    keys = (
        key_of("bob", keyed, rights=("operator",)),
        key_of("alice", keyed, rights=("chat", "approve", "admin")),
        key_of("reader", keyed, expires_at=past),
    )
    limits = TenantSettings(
        default=TenantLimits(tokens_per_day=900), named={limited: TenantLimits(running_runs=3)}
    )
    async with start_gateway(keys=keys, tenants=limits) as served, served.http as http:
        http.headers["authorization"] = f"Bearer {TOKENS['bob']}"
        created = await http.post(f"/context/keys?tenant={runs}", json={"user": "ann"})
        first = (await http.get(TENANTS, params={"after": tenant, "limit": 3})).json()
        second = (await http.get(TENANTS, params={"after": first["next"], "limit": 1})).json()
        beyond = (await http.get(TENANTS, params={"after": "z" * 64})).json()
        refused = await statuses(http, {"limit": 0}, {"limit": 51}, {"after": "no tenant"})
        http.headers["authorization"] = f"Bearer {TOKENS['alice']}"
        forbidden = await http.get(TENANTS)
    seen = {one["tenant"]: one for one in (*first["items"], *second["items"])}
    day, month = seen[runs]["windows"]
    assert list(seen) == [runs, passed, keyed, limited]
    assert first["next"] == keyed
    assert (day["requests"], day["input_tokens"], day["cost_usd"], day["max_tokens"]) == (4, 800, 1.5, 900)
    assert (month["output_tokens"], month["max_tokens"]) == (200, None)
    assert seen[passed]["windows"][0]["requests"] == 2
    assert [one["stored_bytes"] for one in seen.values()] == [1_000, 0, 0, 0]
    assert [one["keys"] for one in seen.values()] == [1, 0, 2, 0]
    assert seen[keyed]["limits"] == {"tokens_per_day": 900}
    assert seen[limited]["limits"] == {"tokens_per_day": 900, "running_runs": 3}
    assert seen[runs]["runs"] == {"queued": 1, "queued_workflows": 1, "parked": 1}
    assert seen[passed]["runs"] == {"queued": 0, "queued_workflows": 0, "parked": 0}
    assert beyond == {"items": [], "next": None}
    assert (created.status_code, refused, forbidden.status_code) == (201, [400, 400, 400], 403)


async def statuses(http: httpx.AsyncClient, *queries: dict[str, str | int]) -> list[int]:
    return [(await http.get(TENANTS, params=query)).status_code for query in queries]


async def stored_runs(bus: Bus, tenant: str) -> None:
    """Store a run of an agent, one of a workflow, an open request and one that was replied to."""
    names = (
        run_work(tenant, "c1"),
        workflow_run(SERVED, tenant, "c2"),
        approval_request(tenant, "a1"),
        approval_request(tenant, "a2"),
        approval_reply(tenant, "a2"),
    )
    for subject in names:
        await durable(bus, subject, b"{}", msg_id=new_id("x"))
