"""The configurations of deploy/nats, run on this machine: keys, certificates, servers, services."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from tools.nats_profiles import CLIENT_PORT, MONITORING_PORT, NODES, ROUTE_PORT, STORE_DIR, TLS_DIR

from banksman.bus.connection import Bus, NatsSettings
from banksman.cli.broker.accounts import seed_file
from banksman.cli.local.child_process import ProcessSpec, Stage
from banksman.cli.machine import free_port
from banksman.deployment.users import OPERATOR, inbox_prefix
from tests.support.chaos.fleet import Member
from tests.support.paths import ROOT
from tests.support.system import wait_ready

DEPLOY = ROOT / "deploy" / "nats"
SERVICES = {"gateway": "gateway", "agent": "agent", "tool-runner": "tool_runner", "workflows": "workflows"}


class DeployedCluster:
    """Three servers with the deployed configurations, each on its own loopback address and ports."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = {node: {name: free_port() for name in _PORTS} for node in NODES}
        self._made = ExitStack()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment: dict[str, str] = {}
        """The settings of every `banksman` command."""
        self.gateway = f"http://127.0.0.1:{free_port()}"

    def start(self, *, replicas: int) -> None:
        """Create keys and certificates, and start the three servers."""
        subprocess.run([DEPLOY / "certificates.sh", self.directory / "tls"], check=True)
        self.use(replicas)
        self.run("keys", "deployment", str(self.directory / "keys"))
        for node in NODES:
            config = self._config(node)
            public = str(self.directory / "keys" / "nats" / "public.env")
            self.launch(node, "nats", "--config", str(config), "--public-keys", public)
        for node in NODES:
            path = (self.directory / "keys" / "nats" / "monitoring.path").read_text()
            url = f"http://127.0.0.1:{self.ports[node][str(MONITORING_PORT)]}{path}/healthz"
            wait_ready(url, lambda node=node: self._ended(node))

    def use(self, replicas: int) -> None:
        """Set the number of replicas for every command that starts from now on."""
        urls = [f"tls://127.0.0.1:{self.ports[node][str(CLIENT_PORT)]}" for node in NODES]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BANKSMAN_")}
        self.environment = {
            **kept,
            "BANKSMAN_NATS__URL": json.dumps(urls),
            "BANKSMAN_NATS__TLS_CA_FILE": str(self.directory / "tls" / "ca.crt"),
            "BANKSMAN_NATS__MONITORING_URL": (
                f"http://127.0.0.1:{self.ports[NODES[0]][str(MONITORING_PORT)]}"
            ),
            "BANKSMAN_NATS__REPLICAS": str(replicas),
        }

    @property
    def as_operator(self) -> Mapping[str, str]:
        """Return the settings of the operator's commands."""
        keys = self.directory / "keys" / OPERATOR
        return {
            "BANKSMAN_NATS__NKEY_SEED_FILE": str(seed_file(keys, OPERATOR)),
            "BANKSMAN_OPERATOR__RUN_NKEY_SEED_FILE": str(seed_file(keys, f"{OPERATOR}-files")),
        }

    async def operator(self) -> Bus:
        """Connect as the operator."""
        settings = NatsSettings(
            url=tuple(json.loads(self.environment["BANKSMAN_NATS__URL"])),
            tls_ca_file=self.directory / "tls" / "ca.crt",
            nkey_seed_file=Path(self.as_operator["BANKSMAN_NATS__NKEY_SEED_FILE"]),
        )
        return await Bus(settings, name=OPERATOR, inbox_prefix=inbox_prefix(OPERATOR)).open()

    def run(self, *arguments: str) -> str:
        """Run a `banksman` command to its end; return its output."""
        command = [sys.executable, "-m", "banksman.cli", *arguments]
        environment = {**self.environment, **self.as_operator}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def launch(self, name: str, *arguments: str, **environment: str) -> None:
        """Start a `banksman` command that keeps running."""
        log = self._made.enter_context((self.directory / f"{name}.log").open("wb"))
        command = [sys.executable, "-m", "banksman.cli", *arguments]
        process = subprocess.Popen(command, env={**self.environment, **environment}, stdout=log, stderr=log)
        self.processes[name] = process

    @asynccontextmanager
    async def services(self, model_url: str) -> AsyncGenerator[None]:
        """One ready process of each service, restarted when it ends, as a supervisor does."""
        members = [self._member(service, section, model_url) for service, section in SERVICES.items()]
        try:
            for member in members:
                member.start()
            for member in members:
                await member.ready()
            yield
        finally:
            for member in members:
                await member.close()

    def _member(self, service: str, section: str, model_url: str) -> Member:
        health = free_port()
        prefix = f"BANKSMAN_{section.upper()}__"
        keys = self.directory / "keys" / service
        settings = {
            **self.environment,
            f"{prefix}HEALTH_PORT": str(health),
            "BANKSMAN_NATS__NKEY_SEED_FILE": str(seed_file(keys, service)),
            "BANKSMAN_APPROVALS__SIGNING_KEY_FILE": str(keys / "approvals.key"),
            "BANKSMAN_DATA_DIR": str(self.directory / service),
            "BANKSMAN_MODELS__OPENAI_API_KEY": "sk-test-canary-openai-0123456789",
            "BANKSMAN_MODELS__OPENAI_BASE_URL": f"{model_url}/v1",
        }
        if service == "gateway":
            settings |= self._of_gateway(seed_file(keys, f"{service}-files"))
        command = (sys.executable, "-m", "banksman.cli", service)
        url = f"http://127.0.0.1:{health}/readyz"
        return Member(
            ProcessSpec(service, Stage.AGENT, command, settings, url), self.directory / f"{service}.log"
        )

    def kill(self, name: str) -> None:
        """`kill -9` a process."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def close(self) -> None:
        """End all processes."""
        for name in tuple(self.processes):
            self.kill(name)
        self._made.close()

    def _of_gateway(self, files_seed: Path) -> dict[str, str]:
        same = {"URL": "", "TLS_CA_FILE": "", "REPLICAS": ""}
        return {
            "BANKSMAN_GATEWAY__PORT": self.gateway.rpartition(":")[2],
            "BANKSMAN_GATEWAY__KEYLESS": "true",
            "BANKSMAN_GATEWAY__OUTPUTS__NKEY_SEED_FILE": str(files_seed),
            **{
                f"BANKSMAN_GATEWAY__OUTPUTS__{name}": self.environment[f"BANKSMAN_NATS__{name}"]
                for name in same
            },
        }

    def _config(self, node: str) -> Path:
        text = (DEPLOY / "cluster" / f"{node}.conf").read_text(encoding="utf-8")
        for other in NODES:
            port = self.ports[other][str(ROUTE_PORT)]
            text = text.replace(f"nats-route://{other}:{ROUTE_PORT}", f"nats-route://127.0.0.1:{port}")
        for name, port in self.ports[node].items():
            text = text.replace(f'"0.0.0.0:{name}"', f'"127.0.0.1:{port}"')
        text = text.replace(f'"{STORE_DIR}"', f'"{self.directory / "data" / node}"')
        file = self.directory / f"{node}.conf"
        file.write_text(text.replace(TLS_DIR, str(self.directory / "tls" / node)), encoding="utf-8")
        return file

    def _ended(self, name: str) -> str | None:
        if self.processes[name].poll() is None:
            return None
        return (self.directory / f"{name}.log").read_text(errors="replace")[-4000:]


_PORTS = (str(CLIENT_PORT), str(MONITORING_PORT), str(ROUTE_PORT))


@contextmanager
def deployed_cluster(directory: Path, *, replicas: int) -> Generator[DeployedCluster]:
    """Run a cluster during the context."""
    cluster = DeployedCluster(directory)
    try:
        cluster.start(replicas=replicas)
        yield cluster
    finally:
        cluster.close()
