"""The existing contents of files that calls would overwrite, which approvers compare with the new ones."""

from __future__ import annotations

import base64
from typing import cast

from tests.support.timeouts import deadline

from banksman.agent.model.checks import OLD_CONTENTS_S, old_contents
from banksman.agent.protocols.base import RequestedCall
from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.bus.names import RUNNERS
from banksman.bus.storage.kv import Bucket
from banksman.contracts.calls import RunnerLease
from banksman.contracts.errors import Unavailable
from banksman.contracts.runner_requests import FileReply, FileRequest
from banksman.runs.runners.placement import Placements
from banksman.runs.state import Conversation

WRITES = tuple(
    RequestedCall("write_file", {"path": f"{name}.txt", "content": "new"}) for name in ("a", "b", "c", "a")
)


async def test_a_runner_that_stops_replying_delays_an_approval_request_by_one_time_limit(
    own_bus: Bus, tenant: str, conversation: str
) -> None:
    await Bucket(own_bus, RUNNERS, RunnerLease).put("r1", RunnerLease(runner="r1", runner_epoch=1))
    requests: list[Message] = []

    async def reply_once(message: Message) -> None:
        requests.append(message)
        if len(requests) == 1:
            old = FileReply(data_base64=base64.b64encode(b"old").decode())
            await own_bus.publish(message.reply, old.model_dump_json().encode())

    await own_bus.subscribe("file.r1.>", reply_once)
    async with BrokerClock(own_bus) as clock, Placements(own_bus, clock) as placements:
        async with deadline("the reads had no common time limit", OLD_CONTENTS_S + 4):
            found = await old_contents(placements, Conversation(tenant, conversation), WRITES)

    assert found == {"a.txt": "old"}
    assert len(requests) == 2


async def test_no_further_file_is_requested_after_no_runner_could_be_reached() -> None:
    class NoRunner:
        requests = 0

        async def files(self, tenant: str, conversation_id: str, request: FileRequest) -> FileReply:
            self.requests += 1
            raise Unavailable("no tool-runner serves this workspace now")

    nobody = NoRunner()

    assert await old_contents(cast(Placements, nobody), Conversation("acme", "c1"), WRITES) == {}
    assert nobody.requests == 1
