"""Assistants and usage over NATS, from a tenant's account, with the gateway's own permissions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.gateway.conftest import Served, gateway_on
from tests.support.fixtures import SecuredNats
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.messages import Message
from banksman.bus.names import USAGE
from banksman.bus.storage.kv import Bucket
from banksman.contracts import subjects
from banksman.contracts.assistants import NewAssistant, ToolSettings
from banksman.contracts.errors import ErrorCode, Unavailable
from banksman.contracts.frames import REQUEST_ID, SCHEMA_VERSION
from banksman.contracts.ids import new_id
from banksman.contracts.model_options import ModelOptions
from banksman.contracts.usage import CommitUsage, UsageTotals, usage_key
from banksman.deployment.users import AGENT, GATEWAY
from banksman.runtime.tenants import TenantLimits, TenantSettings
from banksman.sdk import Client, RemoteError, connect

TENANT = "acme"
TENANTS = TenantSettings(
    default=TenantLimits(tokens_per_day=900), named={TENANT: TenantLimits(cost_usd_per_month=5)}
)


@pytest.fixture
async def gateway(secured_nats: SecuredNats) -> AsyncGenerator[Served]:
    """A gateway on the server with accounts."""
    async with await secured_nats.connect(GATEWAY) as bus:
        nats = NatsSettings(
            url=secured_nats.server.url, nkey_seed_file=secured_nats.seed_file(GATEWAY), connect_timeout_s=10
        )
        async with gateway_on(secured_nats.server, bus, TENANT, nats=nats, tenants=TENANTS) as served:
            yield served


@pytest.fixture
async def client(secured_nats: SecuredNats, gateway: Served) -> AsyncGenerator[Client]:
    """A service in the tenant's account."""
    seed = secured_nats.seed_file(f"tenant-{TENANT}")
    async with connect(secured_nats.server.url, TENANT, nkey_seed_file=seed) as connected:
        yield connected


@pytest.fixture
async def agent(secured_nats: SecuredNats) -> AsyncGenerator[Bus]:
    async with await secured_nats.connect(AGENT) as bus:
        yield bus


async def test_an_assistant_is_created_read_updated_listed_and_deleted_over_nats(client: Client) -> None:
    """R58, R84: an update can enable tools; each change has a new revision."""
    wanted = new_id("as")
    made = await client.create_assistant(NewAssistant(id=wanted, model="demo:demo"))
    given = NewAssistant(model="demo:demo", tools=ToolSettings(enabled=True, allowed_tools=("bash",)))
    changed = await client.update_assistant(wanted, given)
    unchanged = await client.update_assistant(wanted, given)
    listed = await client.assistants()
    read = await client.assistant(wanted)
    await client.delete_assistant(wanted)

    assert (made.tools.enabled, changed.tools.allowed_tools) == (False, ("bash",))
    assert changed.revision > made.revision and unchanged.revision == changed.revision
    assert read == changed and read in listed
    assert "default" in [one.id for one in listed]
    with pytest.raises(RemoteError) as missing:
        await client.assistant(wanted)
    assert missing.value.code is ErrorCode.NOT_FOUND


async def test_a_repeated_creation_returns_the_first_assistant(client: Client) -> None:
    request_id, given = new_id("q"), NewAssistant(options=ModelOptions(max_tokens=5))
    first = await client.create_assistant(given, request_id=request_id)
    again = await client.create_assistant(given, request_id=request_id)
    assert first == again

    named = NewAssistant(id=first.id)
    for wrong, reused in ((named, request_id), (named, None)):
        with pytest.raises(RemoteError) as refused:
            await client.create_assistant(wrong, request_id=reused)
        assert refused.value.code is ErrorCode.CONFLICT


async def test_an_update_may_name_the_revision_that_it_replaces(client: Client) -> None:
    made = await client.create_assistant(NewAssistant(name="one"))
    await client.update_assistant(made.id, NewAssistant(name="two"), revision=made.revision)

    with pytest.raises(RemoteError) as late:
        await client.update_assistant(made.id, NewAssistant(name="three"), revision=made.revision)

    assert late.value.code is ErrorCode.CONFLICT
    assert (await client.assistant(made.id)).name == "two"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (NewAssistant(model="no-provider"), "model"),
        (NewAssistant(fallback_models=("openai:x", "nobody:y")), "model"),
        (NewAssistant(system_prompt_id="nowhere"), None),
    ],
    ids=["model", "fallback", "prompt"],
)
async def test_an_invalid_assistant_is_refused_with_the_name_of_the_field(
    client: Client, given: NewAssistant, field: str | None
) -> None:
    with pytest.raises(RemoteError) as refused:
        await client.create_assistant(given)
    assert (refused.value.frame.details or {}).get("field") == field
    assert refused.value.code is (ErrorCode.BAD_REQUEST if field else ErrorCode.NOT_FOUND)


async def test_requests_without_the_sdk_are_checked_in_the_same_way(
    secured_nats: SecuredNats, gateway: Served
) -> None:
    """An unknown field, an unsupported version and invalid JSON are refused by name."""
    seed = secured_nats.seed_file(f"tenant-{TENANT}")
    settings = NatsSettings(url=secured_nats.server.url, nkey_seed_file=seed, connect_timeout_s=10)
    subject = subjects.api(TENANT, "assistant", "create")
    async with await Bus(settings, name="raw").open() as bus:
        unknown = json.loads(await bus.request(subject, b'{"heat": 1}', 5))
        nested = json.loads(await bus.request(subject, b'{"tools": {"enabld": true}}', 5))
        garbage = json.loads(await bus.request(subject, b"{", 5))
        newer = json.loads(await bus.request(subject, b"{}", 5, {SCHEMA_VERSION: "9"}))
        made = json.loads(await bus.request(subject, b"{}", 5, {REQUEST_ID: new_id("q")}))
    assert [response["type"] for response in (unknown, nested, garbage, newer)] == ["error"] * 4
    assert nested["details"]["field"] == "tools.enabld"
    assert unknown["details"]["field"] == "heat"
    assert made["tools"]["enabled"] is False and made["revision"] > 0


async def test_usage_is_reported_with_the_limits_of_the_operator(client: Client, agent: Bus) -> None:
    totals = UsageTotals().with_commit(7, datetime.now(UTC), CommitUsage(2, 400, 100, 0.75))
    await Bucket(agent, USAGE, UsageTotals).put(usage_key(TENANT), totals)

    day, month = (await client.usage()).windows

    assert (day.requests, day.input_tokens, day.output_tokens, day.cost_usd) == (2, 400, 100, 0.75)
    assert (day.max_tokens, day.max_cost_usd) == (900, None)
    assert (month.max_tokens, month.max_cost_usd) == (None, 5)
    assert day.ends_at <= month.ends_at


async def test_the_error_of_a_request_without_a_reply_subject_reaches_its_tenant(
    secured_nats: SecuredNats, gateway: Served
) -> None:
    """Interfaces, section 6: its errors go to `api.{t}.error`."""
    seed = secured_nats.seed_file(f"tenant-{TENANT}")
    settings = NatsSettings(url=secured_nats.server.url, nkey_seed_file=seed, connect_timeout_s=10)
    errors: asyncio.Queue[Message] = asyncio.Queue()

    async def received(message: Message) -> None:
        errors.put_nowait(message)

    async with await Bus(settings, name="publisher").open() as bus:
        await bus.subscribe(subjects.api(TENANT, "error"), received)
        await bus.ready()
        await bus.publish(subjects.api(TENANT, "chat", "send", "c1"), b'{"content": "hi", "id": "q7"}')
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            error = json.loads((await errors.get()).data)
    assert (error["code"], error["reply_to"]) == ("not_found", "q7")


async def test_no_account_reaches_another_tenants_assistants(
    secured_nats: SecuredNats, gateway: Served
) -> None:
    """P8: the subject names the tenant, and an account may publish for its own tenant only."""
    seed = secured_nats.seed_file(f"tenant-{TENANT}")
    settings = NatsSettings(url=secured_nats.server.url, nkey_seed_file=seed, connect_timeout_s=10)
    async with await Bus(settings, name="thief").open() as bus:
        for words in (("assistant", "list"), ("usage",)):
            with pytest.raises(Unavailable) as refused:
                await bus.request(subjects.api("globex", *words), b"{}", 5)
            assert refused.value.no_responders


async def test_a_schedule_is_created_run_paused_and_deleted_over_nats_and_starts_when_it_is_due(
    secured_nats: SecuredNats, gateway: Served
) -> None:
    seed = secured_nats.seed_file(f"tenant-{TENANT}")
    settings = NatsSettings(url=secured_nats.server.url, nkey_seed_file=seed, connect_timeout_s=10)
    prompt = {"type": "prompt", "content": "hi"}
    async with await Bus(settings, name="raw").open() as bus:

        async def request(*action: str, **body: Any) -> dict[str, Any]:
            data = json.dumps(body).encode()
            return json.loads(await bus.request(subjects.api(TENANT, "schedule", *action), data, 10))

        at = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
        made = await request("create", start=prompt, at=at)
        ran = await eventually(lambda: read_with_run(request, made["id"]))
        now = await request("run", made["id"])
        paused = await request("update", made["id"], start=prompt, cron="0 0 * * *", paused=True)
        listed = await request("list")
        deleted = await request("delete", made["id"])
        missing = await request("read", made["id"])
        daily = await request("create", start=prompt, cron="0 0 * * *")
        [coming] = (await request("coming"))["items"]
    assert (coming["schedule_id"], coming["starts"][0]) == (daily["id"], daily["next_at"])
    assert (ran["runs"][0]["result"], ran["runs"][0]["user"]) == ("started", "nats")
    assert (now["result"], now["run_id"] != ran["runs"][0]["run_id"]) == ("started", True)
    assert (paused["paused"], paused["next_at"], len(paused["runs"])) == (True, None, 2)
    assert [one["last_run"]["run_id"] for one in listed["items"]] == [now["run_id"]]
    assert (deleted, missing["code"]) == ({"id": made["id"]}, "not_found")


async def read_with_run(
    request: Callable[..., Awaitable[dict[str, Any]]], schedule: str
) -> dict[str, Any] | None:
    read = await request("read", schedule)
    return read if read["runs"] else None
