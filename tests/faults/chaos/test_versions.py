"""Two versions side by side, as in every upgrade: each reads or ignores what the other writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from banksman.contracts.ids import new_id
from tests.faults.chaos.conftest import SEED, Stage, bash
from tests.support.chaos.mixed import Mixed, mixed_on
from tests.support.chaos.newer import EVENT_TYPE
from tests.support.chaos.plans import NEEDS_APPROVAL
from tests.support.chaos.versions import CURRENT, FUTURE, NoSuchVersion, version_at
from tests.support.history.records import Seen
from tests.support.scripted_models import ScriptedReply

pytestmark = pytest.mark.timeout(420)
"""Seconds; processes are restarted, which is slow on a busy machine."""


@pytest.mark.asyncio(loop_scope="session")
async def test_a_newer_version_works_beside_this_one_and_can_be_rolled_back(stage: Stage) -> None:
    """R39, A35: it writes fields, events and headers that this one does not know; nothing is lost or
    dead-lettered.

    Half of the system is upgraded under traffic and rolled back, and processes of both halves are killed.
    """
    options = Mixed(CURRENT, FUTURE, SEED, rate=2, side_by_side_s=3, whole=False)
    verdict = await mixed_on(stage.fleet, stage.model, options)
    await stage.fleet.ready()
    print(f"seed {SEED}\n{verdict}")  # noqa: T201  # shown when the test fails
    assert verdict.good, f"seed {SEED}\n{verdict}\n{verdict.log}"
    assert verdict.history.accepted
    unknown = {seen.reader for seen in verdict.history.of(Seen) if seen.type == EVENT_TYPE}
    assert any(reader.startswith("user-") for reader in unknown), "it was passed on to clients"
    assert any(reader.startswith("final") for reader in unknown), "it stayed in the log"


@pytest_asyncio.fixture(loop_scope="session")
async def upgraded(stage: Stage) -> AsyncGenerator[Stage]:
    """The fleet, with the first gateway of a newer version."""
    stage.fleet["gateway-1"].version = FUTURE
    await stage.restarted("gateway-1")
    yield stage
    stage.fleet["gateway-1"].version = CURRENT
    await stage.restarted("gateway-1")


@pytest.mark.asyncio(loop_scope="session")
async def test_gateways_of_two_versions_return_one_response_and_accept_each_others_signatures(
    upgraded: Stage, marker: str
) -> None:
    """P3, P14: a request repeated at the other gateway is the same one; its approval is accepted."""
    message = {"id": new_id("q"), "content": "go"}
    async with upgraded.connected(0) as newer, upgraded.connected(1) as older:
        conversation = await upgraded.conversation(
            older, bash(marker), ScriptedReply(text="done"), assistant=NEEDS_APPROVAL
        )
        runs = [await client.chat(conversation, **message) for client in (newer, older, newer)]
        # Two agents may start messages that are sent within milliseconds in either order.
        approval_request = await older.approval_request(runs[0])
        another = [await client.chat(conversation, "again", id="second") for client in (older, newer)]
        reply = await newer.request(
            "approval.reply", approval_id=approval_request["approval_id"], all="approve"
        )
        outcome = await older.finished(runs[0])

    assert (len(set(runs)), len(set(another))) == (1, 1)
    assert (reply["type"], outcome["status"]) == ("ack", "completed")
    assert upgraded.fleet.executions(marker) == 1


def test_an_unknown_version_is_refused_by_name(tmp_path: Path) -> None:
    """A shallow clone lacks old commits. The command fails before it starts a process."""
    with pytest.raises(NoSuchVersion, match="no-such-version"):
        version_at("no-such-version", tmp_path)
    command = [sys.executable, "-m", "tests.support.chaos.mixed", "--base", "no-such-version"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no such version: no-such-version" in done.stdout
