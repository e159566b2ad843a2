"""Schedules: each due time starts one run as the schedule's user, whichever process ends in between."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import SIGNING_KEY, TOKENS, Agent, GatewayFactory, Served, gateway_on, key_of
from tests.support.nats import Broker
from tests.support.polling import eventually, wait_until
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.connection import Bus
from banksman.bus.jetstream import count_below
from banksman.bus.names import RUNS, SCHEDULES, TIMERS, kv_subject
from banksman.bus.publish import durable
from banksman.bus.storage.kv import Bucket
from banksman.contracts import subjects
from banksman.contracts.ids import new_id
from banksman.gateway.schedules.due import ScheduleStore
from banksman.gateway.schedules.models import Schedule
from banksman.gateway.schedules.times import MAX_STARTS_EACH
from banksman.runtime.failpoints import TESTING_VARIABLE, VARIABLE

PATH = "/context/schedules"
PROMPT = {"type": "prompt", "content": "Write the report."}
HOURLY = {"start": PROMPT, "cron": "0 * * * *"}
SOON_S = 3.0


def soon(seconds: float = SOON_S) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def create(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await http.post(PATH, json={"start": PROMPT, **fields})
    assert response.status_code == 201, response.text
    return response.json()


async def ran(http: httpx.AsyncClient, schedule: str, count: int = 1) -> dict[str, Any]:
    """Wait until a schedule shows this number of runs, and return it."""

    async def shown() -> dict[str, Any] | None:
        read = (await http.get(f"{PATH}/{schedule}")).json()
        return read if len(read["runs"]) >= count else None

    return await eventually(shown)


async def due_before(bus: Bus, tenant: str, schedule: str, ago: timedelta) -> datetime:
    """Let a stored schedule be overdue, as it is after the system was down, and set its timer."""
    bucket = Bucket(bus, SCHEDULES, Schedule)
    entry = await bucket.get(f"{tenant}.{schedule}")
    assert entry is not None
    due = (datetime.now(UTC) - ago).replace(microsecond=0)
    overdue = entry.value.model_copy(update={"next_at": due})
    assert await bucket.update(entry.key, overdue, entry.revision)
    await ScheduleStore(bus).set_timer(tenant, schedule, due)
    return due


async def starts(bus: Bus, tenant: str) -> int:
    """Return how many starts of a tenant's runs are stored."""
    return await count_below(bus, RUNS, subjects.run_work(tenant, subjects.ANY))


async def test_a_prompt_runs_at_its_time_in_a_new_conversation_and_shows_the_state_of_its_run(
    gateway: Served, agent: Agent
) -> None:
    async with gateway.http as http:
        created = await create(http, title="Report", at=soon())
        read = await ran(http, created["id"])
        [run] = read["runs"]
        start = await agent.started(run["conversation_id"])
        await agent.begin(start)
        running = (await http.get(f"{PATH}/{created['id']}")).json()["last_run"]["status"]
        await agent.finish(start)
        ended = (await http.get(f"{PATH}/{created['id']}")).json()["last_run"]["status"]
        conversation = (await http.get(f"/context/conversations/{run['conversation_id']}")).json()
        [listed] = (await http.get(PATH)).json()["items"]
    assert (start.content, start.run_id, conversation["title"]) == (
        PROMPT["content"],
        run["run_id"],
        "Report",
    )
    assert datetime.fromisoformat(run["due_at"]) == datetime.fromisoformat(created["next_at"])
    assert (run["result"], run["status"], running, ended) == ("started", "queued", "running", "completed")
    assert (read["next_at"], listed["last_run"]["run_id"]) == (None, run["run_id"])


async def test_a_schedule_continues_a_named_conversation_and_has_its_next_time(
    gateway: Served, agent: Agent, bus: Bus
) -> None:
    async with gateway.http as http:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        created = await create(http, cron="0 * * * *", start={**PROMPT, "conversation_id": conversation})
        due = await due_before(bus, gateway.tenant, created["id"], timedelta(seconds=5))
        read = await ran(http, created["id"])
        start = await agent.started(conversation)
    assert (read["runs"][0]["run_id"], read["runs"][0]["conversation_id"]) == (start.run_id, conversation)
    assert datetime.fromisoformat(read["runs"][0]["due_at"]) == due
    assert read["next_at"] == created["next_at"]


async def test_many_schedules_of_two_gateways_start_once_each_even_if_their_timers_fire_repeatedly(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    count = 12
    store = ScheduleStore(bus)
    async with start_gateway() as first, start_gateway(), first.http as http:
        at = soon(6)
        made = [(await create(http, at=at))["id"] for _ in range(count)]
        for schedule in made:
            await ran(http, schedule)
        for schedule in made:
            await due_before(bus, tenant, schedule, timedelta(seconds=1))
            for _ in range(3):
                await store.set_timer(tenant, schedule, datetime.now(UTC))
        for schedule in made:
            await ran(http, schedule, 2)
        await drained(bus, tenant)
        shown = [await ran(http, schedule, 2) for schedule in made]
    assert [len(schedule["runs"]) for schedule in shown] == [2] * count
    assert await starts(bus, tenant) == 2 * count


async def drained(bus: Bus, tenant: str) -> None:
    """Wait until no message of the tenant's schedules waits."""

    async def empty() -> bool:
        below = (subjects.schedule_set(tenant, subjects.ANY), subjects.schedule_due(tenant, subjects.ANY))
        return not sum([await count_below(bus, TIMERS, one) for one in below])

    await eventually(empty)


async def test_a_gateway_that_is_killed_after_a_start_leaves_nothing_that_starts_twice(
    own_nats: Broker, own_bus: Bus, tenant: str
) -> None:
    """It is killed when the start is stored, and the schedule does not show it yet."""
    async with gateway_on(own_nats, own_bus, tenant) as gateway, gateway.http as http:
        created = await create(http, at=soon(3600))
    # When the first gateway has ended: on a busy machine its end takes longer than seconds.
    await due_before(own_bus, tenant, created["id"], timedelta(seconds=0))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("BANKSMAN_")},
        "BANKSMAN_NATS__URL": own_nats.url,
        "BANKSMAN_NATS__REPLICAS": str(own_nats.replicas),
        "BANKSMAN_GATEWAY__PORT": "0",
        "BANKSMAN_GATEWAY__KEYLESS_TENANT": tenant,
        "BANKSMAN_MODELS__DEFAULT": "demo:demo",
        "BANKSMAN_APPROVALS__SIGNING_KEY": SIGNING_KEY,
        "BANKSMAN_ALLOW_WEAK_DURABILITY": "true",
        TESTING_VARIABLE: "1",
        VARIABLE: "gateway.before_response:kill",
    }
    command = (sys.executable, "-m", "banksman.cli", "gateway")
    killed = await asyncio.create_subprocess_exec(*command, env=environment)
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        assert await killed.wait() == -signal.SIGKILL
    assert await starts(own_bus, tenant) == 1
    async with gateway_on(own_nats, own_bus, tenant) as gateway, gateway.http as http:
        read = await ran(http, created["id"])
        await drained(own_bus, tenant)
        start = await Agent(own_bus, tenant).started(read["runs"][0]["conversation_id"])
        conversations = (await http.get("/context/conversations")).json()["items"]
    assert (len(read["runs"]), await starts(own_bus, tenant), len(conversations)) == (1, 1, 1)
    assert read["runs"][0]["run_id"] == start.run_id


async def test_a_schedule_due_while_the_broker_is_away_runs_once_at_its_return(
    own_nats: Broker, own_bus: Bus, tenant: str
) -> None:
    async with gateway_on(own_nats, own_bus, tenant) as gateway, gateway.http as http:
        at = datetime.now(UTC) + timedelta(seconds=4)
        created = await create(http, at=at.isoformat())
        own_nats.kill()
        wait_until(lambda: datetime.now(UTC) > at)
        own_nats.start()
        read = await ran(http, created["id"])
        await drained(own_bus, tenant)
    assert (read["runs"][0]["result"], await starts(own_bus, tenant)) == ("started", 1)


async def test_missed_runs_run_once_or_not_at_all_as_chosen(gateway: Served, bus: Bus) -> None:
    hours = timedelta(hours=5)
    async with gateway.http as http:
        once = await create(http, cron="0 * * * *", missed="run_once")
        never = await create(http, cron="0 * * * *", missed="skip")
        for schedule in (once, never):
            await due_before(bus, gateway.tenant, schedule["id"], hours)
        ran_once, skipped = [await ran(http, schedule["id"]) for schedule in (once, never)]
    assert [run["result"] for run in ran_once["runs"]] == ["started"]
    assert [(run["result"], run["run_id"]) for run in skipped["runs"]] == [("skipped", None)]
    assert (ran_once["next_at"], skipped["next_at"]) == (once["next_at"], never["next_at"])
    assert await starts(bus, gateway.tenant) == 1


async def test_a_schedule_whose_timer_was_lost_is_found_by_the_next_gateway(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    """It was stored by a newer version, with fields that this one does not know."""
    stored = {
        "id": "sc-1",
        "title": "",
        "start": {**PROMPT, "new": {}, "overrides": {"new": 1}},
        "at": None,
        "cron": "0 * * * *",
        "timezone": "UTC",
        "missed": "run_once",
        "paused": False,
        "created_at": soon(-90_000),
        "updated_at": soon(-90_000),
        "next_at": soon(-4_000),
        "user": "ann",
        "rights": ["chat"],
        "new": 1,
    }
    subject = kv_subject(SCHEDULES, f"{tenant}.sc-1")
    await durable(bus, subject, json.dumps(stored).encode(), msg_id=new_id("kv-"))
    async with start_gateway() as gateway, gateway.http as http:
        read = await ran(http, "sc-1")
    assert [(run["result"], run["user"]) for run in read["runs"]] == [("started", "ann")]


async def test_a_paused_schedule_waits_and_a_resumed_one_runs(gateway: Served, bus: Bus) -> None:
    async with gateway.http as http:
        created = await create(http, at=soon(2))
        paused = await http.put(
            f"{PATH}/{created['id']}", json={"start": PROMPT, "at": created["at"], "paused": True}
        )
        other = await create(http, at=soon(2.5))
        await ran(http, other["id"])
        quiet = (await http.get(f"{PATH}/{created['id']}")).json()
        resumed = await http.put(f"{PATH}/{created['id']}", json={"start": PROMPT, "at": soon()})
        assert resumed.status_code == 200, resumed.text
        read = await ran(http, created["id"])
    assert (paused.json()["next_at"], quiet["runs"], len(read["runs"])) == (None, [], 1)


async def test_a_deleted_schedule_starts_nothing(gateway: Served, bus: Bus) -> None:
    async with gateway.http as http:
        created = await create(http, at=soon(1))
        deleted = await http.delete(f"{PATH}/{created['id']}")
        missing = await http.get(f"{PATH}/{created['id']}")
        other = await create(http, at=soon(1.5))
        await ran(http, other["id"])
        await drained(bus, gateway.tenant)
    assert (deleted.status_code, missing.status_code) == (204, 404)
    assert await starts(bus, gateway.tenant) == 1


async def test_a_user_runs_a_schedule_now_and_a_repeated_request_starts_no_second_run(
    gateway: Served, bus: Bus
) -> None:
    headers = {"idempotency-key": new_id("k")}
    async with gateway.http as http:
        created = await create(http, cron="0 0 1 1 *")
        path = f"{PATH}/{created['id']}/run"
        first, again, other = [await http.post(path, headers=one) for one in (headers, headers, {})]
        read = (await http.get(f"{PATH}/{created['id']}")).json()
    assert (first.status_code, first.json()["run_id"]) == (202, again.json()["run_id"])
    assert [run["run_id"] for run in read["runs"]] == [other.json()["run_id"], first.json()["run_id"]]
    assert ([run["due_at"] for run in read["runs"]], read["next_at"]) == ([None, None], created["next_at"])
    assert await starts(bus, gateway.tenant) == 2


async def test_a_start_that_is_no_longer_possible_shows_its_reason(gateway: Served, bus: Bus) -> None:
    async with gateway.http as http:
        assistant = (await http.post("/context/assistants", json={"name": "A"})).json()["id"]
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        of_assistant = await create(http, cron="0 * * * *", start={**PROMPT, "assistant": assistant})
        in_conversation = await create(
            http, cron="0 * * * *", start={**PROMPT, "conversation_id": conversation}
        )
        await http.delete(f"/context/assistants/{assistant}")
        await http.delete(f"/context/conversations/{conversation}")
        for schedule in (of_assistant, in_conversation):
            await due_before(bus, gateway.tenant, schedule["id"], timedelta(seconds=1))
        failed = [(await ran(http, one["id"]))["last_run"] for one in (of_assistant, in_conversation)]
    assert [run["result"] for run in failed] == ["failed", "failed"]
    assert [run["error"] for run in failed] == [
        {"code": "not_found", "message": f"no assistant with id {assistant!r}"},
        {"code": "not_found", "message": f"no conversation with id {conversation!r}"},
    ]


async def test_a_schedule_acts_as_the_user_who_made_or_last_changed_it(
    start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    keys = (key_of("alice", tenant), key_of("bob", tenant), key_of("reader", tenant, rights=("approve",)))
    async with start_gateway(keys=keys) as gateway, gateway.http as http:
        alice, bob, reader = [
            {"authorization": f"Bearer {TOKENS[name]}"} for name in ("alice", "bob", "reader")
        ]
        made = (await http.post(PATH, json=HOURLY, headers=alice)).json()
        path = f"{PATH}/{made['id']}"
        await due_before(bus, tenant, made["id"], timedelta(seconds=9))

        async def runs(count: int) -> list[dict[str, Any]] | None:
            found = (await http.get(path, headers=reader)).json()["runs"]
            return found if len(found) == count else None

        await eventually(lambda: runs(1))
        changed = (await http.put(path, json={**HOURLY, "title": "Bob's"}, headers=bob)).json()
        await due_before(bus, tenant, made["id"], timedelta(seconds=3))
        found = await eventually(lambda: runs(2))
        refused = [
            (await http.request(method, one, json=HOURLY, headers=reader)).status_code
            for method, one in (("POST", PATH), ("PUT", path), ("DELETE", path), ("POST", f"{path}/run"))
        ]
        users = [(await Agent(bus, tenant).started(run["conversation_id"])).user for run in found]
    assert (made["user"], changed["user"], users) == ("alice", "bob", ["bob", "alice"])
    assert refused == [403] * 4


async def test_the_coming_starts_of_two_weeks_are_listed_until_there_are_too_many(gateway: Served) -> None:
    # No time of this schedule comes while the test runs.
    far = (datetime.now(UTC) + timedelta(hours=12)).hour
    async with gateway.http as http:
        daily = await create(http, cron=f"0 {far} * * *")
        once = await create(http, at=soon(86_400))
        crowded = await create(http, cron="* * * * *")
        await create(http, cron="0 0 * * *", paused=True)
        await create(http, at=soon(30 * 86_400))
        items = (await http.get(f"{PATH}/coming")).json()["items"]
    found = {item["schedule_id"]: item for item in items}
    first = datetime.fromisoformat(daily["next_at"])
    due = [datetime.fromisoformat(start) for start in found[daily["id"]]["starts"]]
    assert [item["schedule_id"] for item in items] == [daily["id"], once["id"], crowded["id"]]
    assert due == [first + timedelta(days=number) for number in range(14)]
    assert (found[once["id"]]["starts"], found[once["id"]]["more"]) == ([once["next_at"]], False)
    assert (len(found[crowded["id"]]["starts"]), found[crowded["id"]]["more"]) == (MAX_STARTS_EACH, True)


async def test_another_tenant_sees_no_schedule(guarded: Served) -> None:
    bob = {"authorization": f"Bearer {TOKENS['bob']}"}
    async with guarded.http as http:
        made = (await http.post(PATH, json=HOURLY)).json()["id"]
        items = (await http.get(PATH, headers=bob)).json()["items"]
        coming = (await http.get(f"{PATH}/coming", headers=bob)).json()["items"]
        read = await http.get(f"{PATH}/{made}", headers=bob)
    assert (items, coming, read.status_code) == ([], [], 404)


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"cron": "0 0 * * *", "timezone": "Mars/Olympus"}, 400, "timezone"),
        ({"at": "2020-01-01T00:00:00Z"}, 400, "at"),
        ({"at": "2090-01-01T00:00:00"}, 400, "at"),
        ({"cron": "* * *"}, 400, "cron"),
        ({"cron": "0 0 * * *", "missed": "always"}, 400, "missed"),
        ({"cron": "0 0 * * *", "start": {"type": "mail"}}, 400, "start.type"),
        ({"cron": "0 0 * * *", "start": {**PROMPT, "assistant": "nobody"}}, 404, None),
        ({"cron": "0 0 * * *", "start": {**PROMPT, "conversation_id": "none"}}, 404, None),
        ({"cron": "0 0 * * *", "start": {**PROMPT, "variables": {"a": "x" * 70_000}}}, 400, "start"),
    ],
)
async def test_a_schedule_that_can_never_run_is_refused(
    gateway: Served, fields: dict[str, Any], status: int, field: str | None
) -> None:
    async with gateway.http as http:
        refused = await http.post(PATH, json={"start": PROMPT, **fields})
    assert (refused.status_code, refused.json()["error"].get("field")) == (status, field), refused.text


async def test_a_tenant_has_as_many_schedules_as_the_operator_allows_and_a_repeat_adds_none(
    start_gateway: GatewayFactory,
) -> None:
    headers = {"idempotency-key": new_id("k")}
    async with start_gateway(max_schedules_per_tenant=2) as gateway, gateway.http as http:
        first = await http.post(PATH, json=HOURLY, headers=headers)
        await create(http, cron="0 0 * * *")
        again = await http.post(PATH, json=HOURLY, headers=headers)
        other = await http.post(PATH, json={**HOURLY, "title": "other"}, headers=headers)
        refused = await http.post(PATH, json=HOURLY)
        await http.delete(f"{PATH}/{first.json()['id']}")
        accepted = await http.post(PATH, json=HOURLY)
    assert (first.json()["id"], again.status_code) == (again.json()["id"], 201)
    assert (other.status_code, refused.status_code, accepted.status_code) == (409, 409, 201)
    assert refused.json()["error"]["message"] == "the tenant has 2 schedules; delete some first"


async def test_a_schedule_can_be_sent_back_as_it_was_read_to_pause_and_resume_it(gateway: Served) -> None:
    sent = ("title", "start", "at", "cron", "timezone", "missed")
    start = {**PROMPT, "overrides": {"max_iterations": 3, "options": {"temperature": 0.5}}}
    async with gateway.http as http:
        made = await create(http, cron="5 4 * * *", start=start, title="T")
        path = f"{PATH}/{made['id']}"
        paused = await http.put(path, json={**{name: made[name] for name in sent}, "paused": True})
        assert paused.status_code == 200, paused.text
        resumed = await http.put(path, json={name: paused.json()[name] for name in sent})
    assert (paused.json()["next_at"], resumed.json()["next_at"]) == (None, made["next_at"])
    assert resumed.json()["start"] == made["start"]
