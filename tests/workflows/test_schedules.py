"""Scheduled workflows: a run with its parameters, and the reason if one cannot start."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import httpx
import pytest

from banksman.bus.connection import Bus
from banksman.contracts.ids import new_id
from banksman.runtime.service import ServiceProcess
from banksman.sdk import WorkflowContext, WorkflowServer, hint, workflow
from tests.gateway.conftest import gateway_on
from tests.support.fixtures import settings_of
from tests.support.nats import Broker
from tests.support.polling import eventually

PATH = "/context/schedules"


@workflow(positional=("version",))
async def release(
    context: WorkflowContext, version: str, token: Annotated[str, hint("secret")] = "", style: str = "short"
) -> str:
    """Release a version."""
    return f"{version}, {style}, by {context.user}"


@pytest.fixture
async def http(service: ServiceProcess, server: Broker, link: Bus) -> AsyncGenerator[httpx.AsyncClient]:
    async with gateway_on(server, link, new_id("t")) as gateway, gateway.http as http:
        yield http


def soon() -> str:
    return (datetime.now(UTC) + timedelta(seconds=4)).isoformat()


async def last_run(http: httpx.AsyncClient, schedule: str, *, ended: bool) -> dict[str, Any]:
    async def find() -> dict[str, Any] | None:
        run = (await http.get(f"{PATH}/{schedule}")).json()["last_run"]
        return run if run is not None and (not ended or run["status"] == "completed") else None

    return await eventually(find)


async def test_a_scheduled_workflow_runs_with_its_parameters_and_fails_once_withdrawn(
    http: httpx.AsyncClient, server: Broker
) -> None:
    async with WorkflowServer("releases", [release], nats=settings_of(server)) as releases:
        start = {"type": "workflow", "workflow": "release", "parameters": {"version": "1.2"}}
        first = await http.post(PATH, json={"start": start, "at": soon()})
        run = await last_run(http, first.json()["id"], ended=True)
        ended = (await http.get(f"/context/runs/{run['run_id']}")).json()
        second = await http.post(PATH, json={"start": start, "at": soon()})
        await releases.withdraw("release")
        failed = await last_run(http, second.json()["id"], ended=False)
    assert (ended["content"], run["user"]) == ("1.2, short, by local", "local")
    assert (failed["result"], failed["run_id"]) == ("failed", None)
    assert failed["error"] == {"code": "not_found", "message": "no workflow with id 'release'"}


async def test_parameters_of_a_scheduled_workflow_are_checked_and_none_is_a_secret(
    http: httpx.AsyncClient, server: Broker
) -> None:
    async with WorkflowServer("releases", [release], nats=settings_of(server)) as releases:

        async def refused(**parameters: Any) -> tuple[int, str]:
            start = {"type": "workflow", "workflow": "release", "parameters": parameters}
            response = await http.post(PATH, json={"start": start, "cron": "0 0 * * *"})
            return response.status_code, response.json()["error"]["field"]

        wrong, secret = await refused(version=1), await refused(version="1", token="hidden")
        await releases.withdraw("release")
    assert (wrong, secret) == ((400, "start.parameters.version"), (400, "start.parameters.token"))
