"""The processes of a system, nats-server included, each with only the environment variables that it needs."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from banksman.bus.connection import NatsSettings
from banksman.cli.broker import server
from banksman.cli.broker.accounts import Tenant, generate_keys, seed_file, user_names
from banksman.cli.broker.store import started
from banksman.cli.local.child_process import ProcessSpec, Stage, System
from banksman.cli.machine import bind_error, free_port
from banksman.cli.services import SERVICES
from banksman.cli.settings import UpSettings
from banksman.cli.state import DataDir
from banksman.contracts.errors import BadInput
from banksman.contracts.subjects import ANY
from banksman.deployment import users
from banksman.deployment.streams import provision
from banksman.deployment.topology import StorageBudget
from banksman.runtime.durable_files import replace_file

_COMMON = (
    "PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYTHONPATH", "PYTHONUNBUFFERED",
    "BANKSMAN_CONFIG", "BANKSMAN_ALLOW_WEAK_DURABILITY",
    "BANKSMAN_DISK__LOW_BYTES", "BANKSMAN_DISK__LOW_PERCENT",
    "BANKSMAN_DISK__FULL_BYTES", "BANKSMAN_DISK__FULL_PERCENT",
)  # fmt: skip
_OUTGOING = (
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
_PROMPT = (
    "BANKSMAN_AGENT__TOOLS_ENABLED", "BANKSMAN_AGENT__PROMPT_BUDGET_TOKENS",
    "BANKSMAN_AGENT__MAX_OFFERED_TOOLS",
)  # fmt: skip
"""Settings of agents that the gateway needs too, to render the same prompt."""
_DOCKER = ("DOCKER_HOST", "DOCKER_CONFIG", "XDG_RUNTIME_DIR")
_NOTICES = "BANKSMAN_GATEWAY__NOTICES"
_SERVER_PAUSE_S = 1.0
"""Longest pause in seconds before a restart of nats-server. A lease lasts 12 s, and every running command
ends with the lease of its runner."""


@dataclass(frozen=True, slots=True)
class Plan:
    settings: UpSettings
    nats: LocalNats
    gateway_port: int
    inherited: Mapping[str, str]
    without: frozenset[str] = frozenset()
    runners: Mapping[str, Path] = field(default_factory=dict[str, Path])
    sandbox: str | None = None
    """Sandbox of the tool-runner; None for its default."""
    notices: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """URL of the gateway. For a gateway that listens on all interfaces, the loopback address."""
        host = self.settings.gateway.host
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self.gateway_port}"

    def system(self, *, as_json: bool) -> System:
        return System(
            data=self.nats.data,
            url=self.url,
            nats_url=self.nats.url,
            monitoring_url=self.nats.monitoring_url,
            server=self.server(),
            services=self.services(),
            imported=tuple(name for name in SERVICES if name not in self.without),
            common_environment=self._pick(_COMMON, "LC_"),
            ready_timeout_s=self.settings.local.ready_timeout_s,
            drain_timeout_s=self.settings.local.drain_timeout_s,
            disk=self.settings.disk.limits(),
            notices=self.notices,
            as_json=as_json,
        )

    def server(self) -> ProcessSpec:
        environment = {**server.SERVER_ENVIRONMENT, **self._pick((*_COMMON, *server.SERVER_VARIABLES))}
        ready_url = f"{self.nats.monitoring_url}/healthz"
        command, pause_s = self.nats.command, _SERVER_PAUSE_S
        return ProcessSpec("nats", Stage.NATS, command, environment, ready_url, longest_pause_s=pause_s)

    def services(self) -> tuple[ProcessSpec, ...]:
        model_server = self._model_server() if self.settings.demo else None
        signing = {
            "BANKSMAN_APPROVALS__SIGNING_KEY_FILE": str(self.nats.data.signing_key_file),
            **self._pick((), "BANKSMAN_SEARCH__"),
        }
        models = signing | self._pick(_OUTGOING, "BANKSMAN_MODELS__", "BANKSMAN_TENANTS__")
        if model_server and "model-server" not in self.without:
            models["BANKSMAN_MODELS__DEMO_BASE_URL"] = f"{model_server.ready_url.removesuffix('/readyz')}/v1"
        sandbox = {"BANKSMAN_TOOL_RUNNER__SANDBOX": self.sandbox} if self.sandbox else {}
        runner = self._pick(_DOCKER) | sandbox
        agent = models | {"BANKSMAN_AGENT__DEFAULT_MODEL": self.settings.default_model}
        agents = range(1, self.settings.local.agents + 1)
        specs = (
            model_server,
            self._service("workflows", Stage.WORKFLOWS, users.WORKFLOWS, signing | self._example_tools()),
            *(self._runner(number, each, runner) for number, each in enumerate(self.runners, 1)),
            *(
                self._service("agent", Stage.AGENT, users.AGENT, agent, name=f"agent-{n}", number=n)
                for n in agents
            ),
            self._service("gateway", Stage.GATEWAY, users.GATEWAY, models | self._gateway()),
        )
        return tuple(spec for spec in specs if spec and spec.service not in self.without)

    def _service(
        self,
        service: str,
        stage: Stage,
        user: str,
        own: Mapping[str, str],
        *,
        name: str | None = None,
        needed: bool = True,
        number: int = 1,
    ) -> ProcessSpec:
        port_setting = f"{_section(service)}HEALTH_PORT"
        chosen = self.inherited.get(port_setting, "")
        # Processes of one service have the ports from the chosen one on.
        port = int(chosen) + number - 1 if chosen.isdecimal() and chosen != "0" else free_port()
        environment = {
            **self._inherited_by(service),
            **self._connection("BANKSMAN_NATS__", user),
            **own,
            "BANKSMAN_DATA_DIR": str(self.nats.data.path),
            port_setting: str(port),
        }
        command, ready_url = _banksman(service), _ready_url(port)
        return ProcessSpec(name or service, stage, command, environment, ready_url, service, needed=needed)

    def _runner(self, number: int, runner: str, own: Mapping[str, str]) -> ProcessSpec:
        name = "tool-runner" if number == 1 else f"tool-runner-{number}"
        identity = {
            "BANKSMAN_TOOL_RUNNER__RUNNER": runner,
            "BANKSMAN_TOOL_RUNNER__WORKSPACES_DIR": str(self.runners[runner]),
        }
        user = users.tool_runner(runner).name
        return self._service(
            "tool-runner",
            Stage.TOOL_RUNNER,
            user,
            {**own, **identity},
            name=name,
            needed=False,
            number=number,
        )

    def _model_server(self) -> ProcessSpec:
        name, port = "model-server", free_port()
        section = _section(name)
        environment = {
            **self._inherited_by(name), f"{section}HOST": "127.0.0.1", f"{section}PORT": str(port)
        }  # fmt: skip
        return ProcessSpec(name, Stage.MODEL_SERVER, _banksman(name), environment, _ready_url(port), name)

    def _example_tools(self) -> dict[str, str]:
        if not self.settings.local.example_tools:
            return {"BANKSMAN_WORKFLOWS__EXAMPLE_TOOLS": "false"}
        return self._connection("BANKSMAN_WORKFLOWS__EXAMPLE_TOOLS__", LOCAL.user)

    def _gateway(self) -> dict[str, str]:
        settings = self.settings.gateway
        own = {
            "BANKSMAN_GATEWAY__DEFAULT_MODEL": self.settings.default_model,
            **self._connection("BANKSMAN_GATEWAY__OUTPUTS__", users.GATEWAY_FILES),
            **self._pick(_PROMPT),
            "BANKSMAN_GATEWAY__KEYS_FILE": str(settings.keys_file or self.nats.data.api_keys_file),
            "BANKSMAN_GATEWAY__HOST": settings.host,
            "BANKSMAN_GATEWAY__PORT": str(self.gateway_port),
        }
        # Notices that the operator has set replace the default ones.
        if self.notices and _NOTICES not in self.inherited:
            own[_NOTICES] = json.dumps(self.notices)
        return own

    def _connection(self, section: str, user: str) -> dict[str, str]:
        return {
            f"{section}URL": self.nats.url,
            f"{section}NKEY_SEED_FILE": str(self.nats.seed_file(user)),
            f"{section}MONITORING_URL": self.nats.monitoring_url,
        }

    def _inherited_by(self, service: str) -> dict[str, str]:
        return self._pick(_COMMON, "LC_", "BANKSMAN_LOG__", _section(service))

    def _pick(self, names: tuple[str, ...], *prefixes: str) -> dict[str, str]:
        return {
            name: value
            for name, value in self.inherited.items()
            if name in names or name.startswith(prefixes)
        }


def _section(service: str) -> str:
    return f"BANKSMAN_{service.upper().replace('-', '_')}__"


def _banksman(service: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", "banksman.cli", service)


def _ready_url(port: int) -> str:
    return f"http://127.0.0.1:{port}/readyz"


LOCAL = Tenant("local", tool_servers=(ANY,))
"""The tenant of requests to a gateway without API keys. Services on this machine may serve tools to it."""
_CONNECT_TIMEOUT_S = 10


def port_for_clients(data: DataDir) -> int:
    """Return the port of the last start if it is free, so that services outside the system reconnect."""
    try:
        last = int(_port_file(data).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        last = None
    if last is None or bind_error("127.0.0.1", last, reuse=True) is not None:
        return free_port()
    return last


def _port_file(data: DataDir) -> Path:
    return data.nats / "port"


@dataclass(frozen=True, slots=True)
class LocalNats:
    data: DataDir
    port: int
    http_port: int
    http_path: str = field(default_factory=lambda: f"/{secrets.token_hex(16)}")
    """Path of the monitoring endpoints. Every page in a browser may read them, so their path is a secret."""
    storage_bytes: int | None = None
    """Bytes for all streams together; None for 80 % of the disk."""
    runners: tuple[str, ...] = ()
    """Ids of the tool-runners with their own keys; empty for one key shared by runners outside the system."""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def monitoring_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}{self.http_path}"

    @property
    def budget(self) -> StorageBudget:
        """Bytes for all streams: never fewer than before, or the server would not start with its streams.

        Raises:
            BadInput: The setting is smaller than before.
        """
        before, wanted = server.configured_budget(self.data.nats_config_file), self.storage_bytes
        if wanted is None:
            return max(before, StorageBudget.of_disk(self.data.nats))
        if wanted < before.total_bytes:
            expected = f"at least {before.total_bytes}, as before: storage can grow and not shrink"
            raise BadInput("BANKSMAN_OPERATOR__STORAGE_BYTES", wanted, expected)
        return StorageBudget(wanted)

    @property
    def command(self) -> tuple[str, ...]:
        return started((server.executable(), "--config", str(self.data.nats_config_file)), self.data.store)

    def prepare(self) -> None:
        keys = generate_keys(self.data.keys, user_names(runners=self.runners, tenants=(LOCAL,)))
        text = server.render_config(
            keys,
            port=self.port,
            http_port=self.http_port,
            http_path=self.http_path,
            store_dir=str(self.data.store),
            budget=self.budget,
            runners=self.runners,
            tenants=(LOCAL,),
        )
        replace_file(self.data.nats_config_file, text)
        replace_file(_port_file(self.data), str(self.port))
        context = {
            "description": "Services of tenant local, outside `banksman up`",
            "url": self.url,
            "nkey": str(self.seed_file(LOCAL.user)),
        }
        replace_file(self.data.nats_context_file, json.dumps(context, indent=2))

    def seed_file(self, user: str) -> Path:
        return seed_file(self.data.keys, user)

    async def provision(self) -> None:
        settings = NatsSettings(
            url=self.url,
            nkey_seed_file=self.seed_file(users.OPERATOR),
            monitoring_url=self.monitoring_url,
            connect_timeout_s=_CONNECT_TIMEOUT_S,
        )
        await server.BrokerAccess(settings, self.seed_file(users.OPERATOR_FILES), self.budget).in_each(
            provision
        )
