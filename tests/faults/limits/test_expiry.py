"""Decisions a second before and after the expiry, while every service's clock is wrong (P4)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from glob import glob
from pathlib import Path

import pytest

from banksman.contracts.ids import new_id
from tests.faults.chaos.conftest import WAIT_TIMEOUT_S, Stage, bash, make_assistants
from tests.support import privileged
from tests.support.chaos.fleet import OPTIONAL, Fleet
from tests.support.chaos.plans import NEEDS_APPROVAL
from tests.support.client import Client
from tests.support.model_server import ModelServer
from tests.support.polling import scripted_delay
from tests.support.scripted_models import ScriptedReply

pytestmark = pytest.mark.timeout(300)

EXPIRES_S = 8
FAKETIME = next(iter(sorted(glob("/usr/lib/*/faketime/libfaketimeMT.so.1"))), None)
CLOCKS_S = {"agent-1": 300, "agent-2": -300, "gateway-1": 300, "gateway-2": -300, "tool-runner-1": -300}


@dataclass
class Decided:
    """An attempted decision, and its outcome."""

    sent_before: bool
    """Whether it was sent before the expiry."""
    replied_before: bool
    """Whether the response arrived before the expiry."""
    status: int
    run: str = ""
    executions: int = 0


async def test_a_decision_counts_until_the_expiry_for_any_clock(
    tmp_path: Path,
) -> None:
    """P4, A10: the clocks of agents, gateways and runner are five minutes wrong, both ways."""
    privileged.require("faketime", FAKETIME is not None, "services whose clocks are wrong")
    settings = {"BANKSMAN_AGENT__APPROVAL_EXPIRY_S": str(EXPIRES_S)}
    async with ModelServer.running() as model:
        fleet = Fleet(tmp_path, model.url, runners=1, settings=settings, without=OPTIONAL)
        for name, ahead_s in CLOCKS_S.items():
            fleet[name].environment = {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME": f"{ahead_s:+d}s",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        async with fleet:
            await make_assistants(fleet)
            stage = Stage(fleet, model)
            async with stage.connected() as client, asyncio.TaskGroup() as group:
                tried = [
                    group.create_task(_decided(stage, client, gateway, seconds))
                    for gateway in range(2)
                    for seconds in (-1, 1)
                ]
    for one in (task.result() for task in tried):
        assert one.executions <= 1
        assert one.status == 200 or not one.replied_before
        assert one.status == 409 or one.sent_before
        assert (one.run, one.executions) in _ALLOWED[one.status], one


_ALLOWED = {200: {("completed", 1), ("completed", 0)}, 409: {("rejected", 0)}}
"""How a run may end, and how often its command may have run: a call approved in the last second may not
start in time."""


async def _decided(stage: Stage, client: Client, gateway: int, seconds: int) -> Decided:
    """Approve at this offset from the expiry, and wait for the end of the run."""
    marker = new_id("mark-")
    _, run_id = await stage.run(client, bash(marker), ScriptedReply(text="ok"), assistant=NEEDS_APPROVAL)
    approval_request = await client.approval_request(run_id)
    expires = datetime.fromisoformat(approval_request["expires_at"])
    assert abs(expires - datetime.now(UTC)) < timedelta(seconds=EXPIRES_S + WAIT_TIMEOUT_S), (
        "by the broker's clock"
    )
    await _until(expires + timedelta(seconds=seconds))
    sent_before = datetime.now(UTC) < expires
    url = f"{stage.fleet.urls[gateway]}/context/approvals/{approval_request['approval_id']}"
    response = await stage.fleet.http.post(url, json={"all": "approve"}, timeout=WAIT_TIMEOUT_S)
    replied_before = datetime.now(UTC) < expires
    ended = await client.finished(run_id)
    return Decided(
        sent_before, replied_before, response.status_code, ended["status"], stage.fleet.executions(marker)
    )


async def _until(moment: datetime) -> None:
    await scripted_delay((moment - datetime.now(UTC)).total_seconds())
