"""Floor: only the messages of a run in their order, over a nats-server that syncs every write.

Run: python -m benchmarks.floors.chain [--in-flight 16] [--seconds 4]

One process is client, agent and tool server, with a connection for each role. Prints the results as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import dataclass

import nats
from benchmarks.harness.load import under_load
from benchmarks.harness.processes import cpu_s
from benchmarks.harness.scripts import CALLS
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from tests.support.nats import NatsServer, plain_config

from banksman.contracts.ids import new_id
from banksman.runtime.event_loop import run

EVENT = b"x" * 600
"""About the size of a commit."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The connections, and the runs for whose end `execute` waits."""

    gateway: JetStreamContext
    agent: JetStreamContext
    tools: Client
    ended: dict[str, asyncio.Future[None]]

    async def execute(self) -> None:
        """Send the messages of one run and wait for its end."""
        run_id = new_id("c")
        ended = self.ended[run_id] = asyncio.get_running_loop().create_future()
        for key in ("idempotency", "conversations"):
            await self.gateway.publish(f"kv.{key}.{run_id}", EVENT)
        await self.gateway.publish(f"work.{run_id}", EVENT)
        await ended

    async def work(self) -> None:
        """Handle each work message in a task on arrival."""
        pull = await self.agent.pull_subscribe("work.>", "agents", stream="WORK")
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    messages = await pull.fetch(64, timeout=5)
                except TimeoutError:
                    continue
                for message in messages:
                    group.create_task(self._drive(message))

    async def _drive(self, message: Msg) -> None:
        run_id = message.subject.removeprefix("work.")
        await self._commit(run_id)
        for _ in range(CALLS):
            await self._commit(run_id)
            await self.tools.request("call.add", run_id.encode(), timeout=30)
            await self._commit(run_id)
        await self._commit(run_id)
        await message.ack()
        self.ended.pop(run_id).set_result(None)

    async def _commit(self, run_id: str) -> None:
        await self.agent.publish(f"log.{run_id}", EVENT)


async def main(in_flight: int, seconds: float) -> dict[str, float]:
    """Execute chains and return the throughput, and the CPU time of this process and the server."""
    with NatsServer(plain_config(sync_always=True)) as server:
        connections = [await nats.connect(server.url) for _ in range(3)]
        gateway, agent, tools = connections
        streams = agent.jetstream()
        await streams.add_stream(name="LOG", subjects=["log.>", "kv.>", "result.>"], max_msgs_per_subject=100)
        await streams.add_stream(name="WORK", subjects=["work.>"], retention="workqueue")

        async def call(message: Msg) -> None:
            await tools.jetstream().publish(f"result.{message.data.decode()}", EVENT)
            await message.respond(b"2")

        await tools.subscribe("call.add", cb=call)
        chain = Chain(gateway.jetstream(), streams, agent, {})
        worker = asyncio.create_task(chain.work())
        cpu: list[float] = []

        def note() -> None:
            cpu.append(time.process_time() + cpu_s(server.pid))

        async with asyncio.timeout(seconds + 30):
            window = await under_load(chain.execute, in_flight, seconds, begins=note, ends=note)
        worker.cancel()
        await asyncio.wait({worker})
        for connection in connections:
            await connection.close()
    return {"runs_per_s": window.per_s, "cpu_ms_per_run": (cpu[1] - cpu[0]) * 1000 / window.done}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    print(json.dumps(run(main(given.in_flight, given.seconds))))
