"""The processes of a system, each of which a test may kill, freeze, and restart with other settings."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from glob import glob
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from banksman.bus.connection import Bus
from banksman.cli.local.child import launched
from banksman.cli.local.child_process import ProcessSpec, RestartPauses, Stage
from banksman.cli.local.forks import ForkedProcess, ForkRequest, ServiceTemplate
from banksman.cli.local.plan import LOCAL, Plan
from banksman.cli.machine import free_port
from banksman.cli.settings import LocalSettings, UpSettings
from banksman.cli.state import DataDir, readiness_problem
from banksman.contracts.ids import new_id
from banksman.deployment.users import OPERATOR, OPERATOR_FILES
from banksman.tool_runner.identity import sandbox_identity
from banksman.tool_runner.workspaces.workspace import default_root
from tests.support.chaos.broker import Broker, Servers
from tests.support.chaos.canaries import Canaries, Search, found_in_files
from tests.support.chaos.versions import CURRENT
from tests.support.model_server import ModelServer
from tests.support.nats import servers as default_servers
from tests.support.polling import eventually, scripted_delay
from tests.support.timeouts import deadline

START_S = 90.0
"""Seconds until the whole system must be ready, on a busy machine."""
RESTART_AFTER_S = 0.2
END_S = 90.0
"""Seconds until a process must have ended, on a busy machine."""
LEDGER_SERVER = "ledger"
"""The tool server whose only tool writes to a ledger outside of every workspace."""
OPTIONAL = ("workflows", LEDGER_SERVER)
"""Members that a fleet does without if its tests start no workflow and call only tools of the runner."""
LEDGER_FILE = "ledger"
"""Effects of the commands in a workspace: marker, execution and time, one line per execution."""
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "TZ", "PYTHONPATH", "PYTHONPYCACHEPREFIX")


class Member:
    """One process of the system, which restarts whenever it ends."""

    def __init__(self, spec: ProcessSpec, log: Path, template: ServiceTemplate | None = None) -> None:
        """Describe a process; a template forks it while it runs the current code on this host."""
        self.spec = spec
        self.log = log
        self._template = template
        self.prefix: tuple[str, ...] = ()
        """The prefix of its command: `ip netns exec …`."""
        self.environment: dict[str, str] = {}
        """Additional variables for its next starts."""
        self.version = CURRENT
        """The version of its code; applies at the next start."""
        self.pauses: RestartPauses | None = None
        """The pauses before its restarts, as those of `banksman up`; None for short ones."""
        self.starts = 0
        self.exit_codes: list[int] = []
        """Exit codes of the ended processes; negative for a signal."""
        self.armed = False
        """True while the current process has the variables of `once`."""
        self._once: dict[str, str] = {}
        self._process: asyncio.subprocess.Process | ForkedProcess | None = None
        self._wanted = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def name(self) -> str:
        """Its name in the system."""
        return self.spec.name

    @property
    def pid(self) -> int | None:
        """The current process id; None between two processes."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it, and restart it whenever it ends, until `stop`."""
        self._wanted.set()
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name=self.name)

    def once(self, **environment: str) -> None:
        """Set variables for the next process only."""
        self._once = environment

    def kill(self) -> None:
        """`kill -9`."""
        self.send(signal.SIGKILL)

    def freeze(self) -> None:
        """Freeze it: its connections stay open, and it does not respond."""
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue after `freeze`."""
        self.send(signal.SIGCONT)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the current process, if there is one."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def ended(self) -> int:
        """Wait until the current process has ended; return its exit code."""
        seen = len(self.exit_codes)
        async with deadline(f"{self.name} did not end", END_S):
            while len(self.exit_codes) == seen:
                await self._change()
        return self.exit_codes[-1]

    async def begun(self, starts: int) -> None:
        """Wait until it has started `starts` times."""
        async with deadline(f"{self.name} did not start {starts} times", START_S):
            while self.starts < starts:
                await self._change()

    async def restart(self) -> int:
        """Stop it regularly, as a supervisor does; it restarts. Return the exit code."""
        self.send(signal.SIGTERM)
        return await self.ended()

    async def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it until the next `start`."""
        self._wanted.clear()
        self.thaw()
        self.send(number)
        while self._process is not None:
            await self.ended()

    async def close(self) -> None:
        """End it permanently."""
        await self.stop()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def problem(self) -> str | None:
        """Return the reason why it is not ready, as it reports it; None if it is ready."""
        return "not running" if self._process is None else await readiness_problem(self.spec.ready_url)

    async def ready(self, *, wanted: bool = True, within_s: float = START_S) -> None:
        """Wait until it reports that it is ready, or, with `wanted=False`, that it is not.

        Raises:
            AssertionError: It does not in time; the message contains the end of its log.
        """
        problem = None

        async def as_wanted() -> bool:
            nonlocal problem
            problem = await self.problem()
            return (problem is None) is wanted

        try:
            await eventually(as_wanted, within_s, interval_s=0.05)
        except TimeoutError:
            state = "ready" if wanted else "unready"
            raise AssertionError(
                f"{self.name} is not {state} in {within_s:g} s: {problem}\n{self.log_end}"
            ) from None

    @property
    def log_end(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    async def _keep(self) -> None:
        while True:
            await self._wanted.wait()
            began = time.monotonic()
            await self._run_once()
            ran_s = time.monotonic() - began
            await scripted_delay(self.pauses.after(ran_s) if self.pauses else RESTART_AFTER_S)

    async def _run_once(self) -> None:
        settings, self._once = self._once, {}
        self.armed = bool(settings)
        environment = {**self.version.variables(self.spec.environment), **self.environment, **settings}
        with self.log.open("ab") as out:
            self._process = await self._spawn(environment, out.fileno())
        self.starts += 1
        self._changed.set()
        code = await self._process.wait()
        self._process = None
        self.exit_codes.append(code)
        self._changed.set()

    async def _spawn(
        self, environment: Mapping[str, str], output: int
    ) -> asyncio.subprocess.Process | ForkedProcess:
        command = (*self.prefix, *self.version.command(self.spec.command))
        # Only a new program preloads a library or enters a network namespace; a fork does neither.
        needs_exec = self.prefix or self.version is not CURRENT or "LD_PRELOAD" in environment
        if self._template is not None and self.spec.service and not needs_exec:
            request = ForkRequest(self.spec.service, " ".join(command), environment)
            return await self._template.fork(request, output)
        return await asyncio.create_subprocess_exec(
            *launched(command, os.getpid()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            process_group=0,
        )

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Fleet:
    """A system of two agents, gateways and tool-runners, one of everything else, and a tool server.

    As an async context manager it runs during the block.
    """

    def __init__(
        self,
        directory: Path,
        model_url: str,
        *,
        host: str = "127.0.0.1",
        agents: int = 2,
        gateways: int = 2,
        runners: int = 2,
        servers: Servers | None = None,
        settings: Mapping[str, str] | None = None,
        without: Collection[str] = (),
    ) -> None:
        """Describe a fleet.

        Args:
            directory: The directory of all data.
            model_url: The model server of the agents.
            host: The address on which its processes listen; other networks reach it unless it is loopback.
            agents: Number of agents.
            gateways: Number of gateways.
            runners: Number of tool-runners, each with its own workspaces.
            servers: Number of nats-servers; three replicate every stream. None for BANKSMAN_TEST_SERVERS.
            settings: Environment variables of all services.
            without: Names of members that the fleet does not have, see `OPTIONAL`.
        """
        self.directory = directory
        self.host = host
        self.ledger = directory / "ledger.txt"
        """The output of the ledger tool: marker, execution and time, one line per execution."""
        self._data = DataDir(directory / "data")
        self._data.prepare()
        self.broker = Broker(self._data, servers or default_servers(), host)
        self.nats = self.broker.nats
        self.provision = self.broker.provision
        """Creates the streams at the start."""
        if host != "127.0.0.1":
            self.broker.listen_everywhere()
        self.canaries = Canaries()
        """Secrets that may appear only in keys and environments."""
        inherited = {
            **{name: value for name in _INHERITED if (value := os.environ.get(name)) is not None},
            **self.canaries.environment(model_url, host),
            "BANKSMAN_MODELS__OPENAI_BASE_URL": f"{model_url}/v1",
            **(settings or {}),
        }
        chosen = UpSettings.model_validate(
            {"local": LocalSettings(agents=agents), "models": {"openai_api_key": "sk-test"}}
        )
        self.roots = [self._root(number) for number in range(1, runners + 1)]
        """The workspace directories, one per runner."""
        places = {new_id("r"): root for root in self.roots}
        plan = Plan(chosen, self.nats, gateway_port=free_port(), inherited=inherited, runners=places)
        self.urls: list[str] = []
        """The addresses of the gateways."""
        found = [copy for spec in plan.services() for copy in self._members_of(spec, gateways)]
        found = [*self.broker.specs(plan.server()), *found, self._ledger_server(inherited)]
        logs = self._data.logs
        wanted = [spec for spec in found if spec.name not in without]
        services = {spec.service for spec in wanted if spec.service}
        common = {name: inherited[name] for name in _INHERITED if name in inherited}
        self._template = ServiceTemplate(tuple(sorted(services)), common)
        self.members = {spec.name: Member(spec, logs / f"{spec.name}.log", self._template) for spec in wanted}
        self.servers = tuple(self.members[server.name] for server in self.broker.servers)
        """The members that are nats-servers."""

    async def __aenter__(self) -> Self:
        self.http = httpx.AsyncClient(trust_env=False)
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __getitem__(self, name: str) -> Member:
        """Return a member: `nats`, `nats-3`, `agent-1`, `gateway-2`, `tool-runner-1`, `workflows` or
        `ledger`."""
        return self.members[name]

    async def start(self) -> None:
        """Start every process, and wait until all are ready."""
        for server in self.servers:
            server.start()
        for server in self.servers:
            await server.ready()
        await self.provision()
        for member in self.members.values():
            member.start()
        await self.ready()

    async def ready(self, within_s: float = START_S) -> None:
        """Wait until every process reports that it is ready.

        Raises:
            AssertionError: One process does not in time.
        """
        async with asyncio.TaskGroup() as waiting:
            for member in self.members.values():
                if member.name != LEDGER_SERVER:
                    waiting.create_task(member.ready(within_s=within_s))

    async def close(self) -> None:
        """Kill everything at once."""
        async with asyncio.TaskGroup() as ending:
            for member in self.members.values():
                ending.create_task(member.close())
        await self._template.close()
        await self.http.aclose()

    @asynccontextmanager
    async def operator(self) -> AsyncGenerator[Bus]:
        """Connect as the operator, who may read everything."""
        async with await self.broker.connect(OPERATOR) as bus:
            yield bus

    async def leaks(self, model: ModelServer) -> list[str]:
        """Return one sentence per canary in a forbidden place.

        The search covers the logs, the servers' files, every stream of both accounts, the workspaces, and the
        model requests, but neither the key directory nor the environments.
        """
        search = Search(self.canaries.with_files(self._data.keys))
        places = (self._data.logs, self._data.nats, self.ledger, *self.roots)
        found = [*await found_in_files(search, *places), *search.requests(model)]
        for user in (OPERATOR, OPERATOR_FILES):
            async with await self.broker.connect(user) as bus:
                found += [sentence async for sentence in search.streams(bus)]
        return found

    def ledgers(self) -> list[Path]:
        """Return the ledgers of all workspaces; workspaces may be removed meanwhile."""
        # Unlike pathlib's `glob`, this treats a removed directory as empty.
        return [Path(file) for root in self.roots for file in glob(f"{root}/*/*/{LEDGER_FILE}")]

    def executions(self, marker: str) -> int:
        """Return how often a command with this marker was executed."""
        return sum(file.read_text().split().count(marker) for file in self.ledgers())

    def log(self) -> str:
        """Return the end of every process's log."""
        return "\n".join(f"--- {member.name}\n{member.log_end}" for member in self.members.values())

    def _members_of(self, spec: ProcessSpec, gateways: int) -> list[ProcessSpec]:
        match spec.service:
            case "gateway":
                return [self._gateway(spec, number) for number in range(1, gateways + 1)]
            case "tool-runner":
                name = "tool-runner-1" if spec.name == "tool-runner" else spec.name
                return [self._on(self.broker.with_shared_key(spec), name)]
            case _:
                return [self._on(spec)]

    def _gateway(self, spec: ProcessSpec, number: int) -> ProcessSpec:
        port = free_port()
        self.urls.append(f"http://{self.host}:{port}")
        settings = {
            "BANKSMAN_GATEWAY__PORT": str(port),
            "BANKSMAN_GATEWAY__HOST": self.host,
            "BANKSMAN_GATEWAY__KEYLESS": "true",
            # One connection serves many users; a reconnect subscribes to all their conversations at once.
            "BANKSMAN_GATEWAY__FRAMES_PER_S": "10000",
            "BANKSMAN_GATEWAY__ALLOWED_HOSTS": f'["{self.host}"]',
        }
        return self._on(spec, f"gateway-{number}", settings)

    def _root(self, number: int) -> Path:
        data = self._data.path / f"runner-{number}"
        data.mkdir(mode=0o711, exist_ok=True)
        return default_root(data, sandbox_identity())

    def _on(
        self, spec: ProcessSpec, name: str | None = None, settings: Mapping[str, str] | None = None
    ) -> ProcessSpec:
        """Return a copy of a process with its own ports, on the host of this system."""
        environment = {**spec.environment, **(settings or {})}
        section = next((key.rpartition("__")[0] for key in environment if key.endswith("HEALTH_PORT")), None)
        if section is None:
            return spec
        port = free_port()
        environment |= {f"{section}__HEALTH_PORT": str(port), f"{section}__HEALTH_HOST": self.host}
        environment |= self.broker.settings_for(environment)
        named = {key: value.replace("127.0.0.1", self.host) for key, value in environment.items()}
        ready_url = f"http://{self.host}:{port}/readyz"
        return replace(spec, name=name or spec.name, environment=named, ready_url=ready_url)

    def _ledger_server(self, inherited: Mapping[str, str]) -> ProcessSpec:
        command = (sys.executable, "-m", "tests.support.chaos.ledger", str(self.ledger))
        environment = {
            **{name: value for name, value in inherited.items() if not name.startswith("BANKSMAN_")},
            "NATS_URL": ",".join(self.broker.urls),
            "NATS_SEED_FILE": str(self.nats.seed_file(LOCAL.user)),
        }
        url = f"{self.nats.monitoring_url}/healthz"
        return ProcessSpec(LEDGER_SERVER, Stage.TOOL_RUNNER, command, environment, url)
