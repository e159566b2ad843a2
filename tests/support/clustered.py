"""`banksman up` with a broker of three servers instead of one; everything else is the same.

python -m tests.support.clustered up DATA_DIR PORT
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from banksman.cli.broker.server import executable
from banksman.cli.local.child import launched
from banksman.cli.local.child_process import ProcessSpec
from banksman.cli.local.command import local_runners, supervise
from banksman.cli.local.plan import LocalNats, Plan
from banksman.cli.machine import choose_sandbox
from banksman.cli.settings import UpSettings, adopt_vendor_names
from banksman.cli.state import DataDir, Lock
from banksman.runtime.settings import load
from tests.support.chaos.broker import Broker
from tests.support.polling import scripted_delay
from tests.support.system import wait_ready

_RESTART_AFTER_S = 0.2


@dataclass(frozen=True, kw_only=True)
class ClusteredNats(LocalNats):
    """The first of three servers, and the configuration of the other two."""

    broker: Broker

    async def provision(self) -> None:
        """Set three replicas for every stream, once all servers run."""
        for server in self.broker.servers:
            await asyncio.to_thread(wait_ready, f"{server.nats.monitoring_url}/healthz", lambda: None)
        await self.broker.provision()


@dataclass(frozen=True)
class ClusteredPlan(Plan):
    """The processes of a system with three servers; one process, `nats`, runs all three."""

    def server(self) -> ProcessSpec:
        """Return the process that keeps all three servers alive."""
        files = [str(server.config_file) for server in self._broker.servers]
        command = (sys.executable, "-m", "tests.support.clustered", "servers", *files)
        return replace(Plan.server(self), command=command)

    def services(self) -> tuple[ProcessSpec, ...]:
        """Return every other process, with the addresses of all servers."""
        return tuple(self._of_cluster(spec) for spec in Plan.services(self))

    @property
    def _broker(self) -> Broker:
        assert isinstance(self.nats, ClusteredNats)
        return self.nats.broker

    def _of_cluster(self, spec: ProcessSpec) -> ProcessSpec:
        if spec.service == "tool-runner":
            spec = self._broker.with_shared_key(spec)
        return replace(spec, environment={**spec.environment, **self._broker.settings_for(spec.environment)})


def up(directory: Path, port: int) -> None:
    """Run the system until a signal arrives."""
    os.environ |= {"BANKSMAN_DATA_DIR": str(directory), "BANKSMAN_GATEWAY__PORT": str(port)}
    adopt_vendor_names(os.environ)
    settings = load(UpSettings)
    data = DataDir(directory.resolve())
    data.prepare()
    lock = Lock(data)
    if lock.take() is not None:
        raise RuntimeError(f"{directory} has a system already")
    try:
        data.end_leftovers()
        broker = Broker(data, 3, "127.0.0.1")
        nats = ClusteredNats(data, broker.nats.port, broker.nats.http_port, http_path="", broker=broker)
        sandbox = "docker" if choose_sandbox().kind == "docker" else None
        runners = local_runners(settings, data)
        plan = ClusteredPlan(settings, nats, port, dict(os.environ), sandbox=sandbox, runners=runners)
        supervise(plan, lock, as_json=False)
    finally:
        data.forget()
        lock.release()


async def keep_servers(config_files: Sequence[str]) -> None:
    """Keep one nats-server alive per configuration file, until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncio.TaskGroup() as group:
        for file in config_files:
            group.create_task(_keep(file, stop))


async def _keep(config_file: str, stop: asyncio.Event) -> None:
    while not stop.is_set():
        command = launched((executable(), "--config", config_file), os.getpid())
        server = await asyncio.create_subprocess_exec(*command)
        ended = asyncio.create_task(server.wait())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([ended, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if stop.is_set() and server.returncode is None:
            server.terminate()
        await ended
        await scripted_delay(0 if stop.is_set() else _RESTART_AFTER_S)


def main() -> None:
    """Run the system, or its servers."""
    match sys.argv[1:]:
        case ["up", directory, port]:
            up(Path(directory), int(port))
        case ["servers", *config_files]:
            asyncio.run(keep_servers(config_files))
        case other:
            raise SystemExit(f"{other}: expected `up DATA_DIR PORT` or `servers FILE...`")


if __name__ == "__main__":
    main()
