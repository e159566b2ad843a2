"""Which processes make up the system, and what each is told: no more than it needs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from banksman.cli.local.nats import SERVER_ENVIRONMENT, SERVER_VARIABLES, LocalNats
from banksman.cli.local.ports import free_port
from banksman.cli.local.settings import UpSettings
from banksman.deployment import users


class Stage(IntEnum):
    """The order in which processes end: those that take work in before those that do it."""

    GATEWAY = 1
    AGENT = 2
    WORKFLOWS = 3
    TOOL_RUNNER = 4
    MODEL_SERVER = 5
    NATS = 6


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process of the system."""

    name: str
    stage: Stage
    command: tuple[str, ...]
    environment: Mapping[str, str]
    ready_url: str
    """Answers 200 once the process is ready."""
    needed: bool = True
    """False when the system is of use without it."""


_EVERYBODY = (
    "PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYTHONPATH", "PYTHONUNBUFFERED",
    "BANKSMAN_CONFIG", "BANKSMAN_ALLOW_WEAK_DURABILITY",
)  # fmt: skip
_CALLS_OUT = (
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
_OFFER = (
    "BANKSMAN_AGENT__TOOLS_ENABLED", "BANKSMAN_AGENT__PROMPT_BUDGET_TOKENS",
    "BANKSMAN_AGENT__MAX_OFFERED_TOOLS",
)  # fmt: skip
_DOCKER = ("DOCKER_HOST", "DOCKER_CONFIG", "XDG_RUNTIME_DIR")


@dataclass(frozen=True, slots=True)
class Plan:
    """The processes of one system."""

    settings: UpSettings
    nats: LocalNats
    gateway_port: int
    inherited: Mapping[str, str]
    """The environment that `up` was started with."""
    without: frozenset[str] = frozenset()
    """Services that are left out."""
    sandbox: str | None = None
    """The tool-runner's sandbox, where it is not the usual one."""
    notices: tuple[str, ...] = ()
    """Sentences that people should see on the page."""

    @property
    def url(self) -> str:
        """Where people go; a gateway on all interfaces is reached over loopback too."""
        host = self.settings.gateway.host
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self.gateway_port}"

    def server(self) -> ProcessSpec:
        """nats-server, which everything else waits for."""
        return ProcessSpec(
            "nats",
            Stage.NATS,
            self.nats.command,
            {**SERVER_ENVIRONMENT, **self._pick((*_EVERYBODY, *SERVER_VARIABLES))},
            f"{self.nats.monitoring_url}/healthz",
        )

    def services(self) -> tuple[ProcessSpec, ...]:
        """Every process but nats-server."""
        model_server = self._model_server() if self._runs("model-server") and self.settings.demo else None
        demo_url = f"{model_server.ready_url.removesuffix('/readyz')}/v1" if model_server else None
        chosen = [model_server] if model_server else []
        return (*chosen, *self._on_the_bus(demo_url))

    def _on_the_bus(self, demo_url: str | None) -> Iterator[ProcessSpec]:
        models = {**self._models(demo_url), **self._pick((), prefixes=("BANKSMAN_TENANTS__",))}
        signs = {"BANKSMAN_APPROVALS__SIGNING_KEY_FILE": str(self.nats.data.signing_key_file)}
        if self._runs("workflows"):
            yield self._service("workflows", Stage.WORKFLOWS, user=users.WORKFLOWS)
        if self._runs("tool-runner"):
            yield self._service(
                "tool-runner",
                Stage.TOOL_RUNNER,
                user=users.TOOL_RUNNER,
                told={"BANKSMAN_TOOL_RUNNER__SANDBOX": self.sandbox} if self.sandbox else {},
                inherits=_DOCKER,
                needed=False,
            )
        for number in range(1, self.settings.local.agents + 1) if self._runs("agent") else ():
            yield self._service(
                "agent",
                Stage.AGENT,
                name=f"agent-{number}",
                user=users.AGENT,
                told={**models, **signs, "BANKSMAN_AGENT__DEFAULT_MODEL": self.settings.default_model},
                inherits=_CALLS_OUT,
            )
        if self._runs("gateway"):
            yield self._service(
                "gateway",
                Stage.GATEWAY,
                user=users.GATEWAY,
                told={**models, **signs, **self._gateway()},
                inherits=_CALLS_OUT,
            )

    def _service(
        self,
        service: str,
        stage: Stage,
        *,
        user: str,
        name: str | None = None,
        told: Mapping[str, str] | None = None,
        inherits: tuple[str, ...] = (),
        needed: bool = True,
    ) -> ProcessSpec:
        port = free_port()
        section = f"BANKSMAN_{service.upper().replace('-', '_')}__"
        environment = {
            **self._pick((*_EVERYBODY, *inherits), prefixes=("LC_", "BANKSMAN_LOG__", section)),
            **self._connection("BANKSMAN_NATS__", user),
            **(told or {}),
            "BANKSMAN_DATA_DIR": str(self.nats.data.path),
            f"{section}HEALTH_PORT": str(port),
        }
        return ProcessSpec(
            name or service, stage, _banksman(service), environment, _ready_url(port), needed=needed
        )

    def _model_server(self) -> ProcessSpec:
        port = free_port()
        environment = self._pick(_EVERYBODY, prefixes=("LC_", "BANKSMAN_LOG__", "BANKSMAN_MODEL_SERVER__"))
        return ProcessSpec(
            "model-server",
            Stage.MODEL_SERVER,
            (*_banksman("model-server"), "--host", "127.0.0.1", "--port", str(port)),
            environment,
            _ready_url(port),
        )

    def _connection(self, section: str, user: str) -> dict[str, str]:
        return {
            f"{section}URL": self.nats.url,
            f"{section}NKEY_SEED_FILE": str(self.nats.seed_file(user)),
            f"{section}MONITORING_URL": self.nats.monitoring_url,
        }

    def _models(self, demo_url: str | None) -> dict[str, str]:
        return {
            **self._pick((), prefixes=("BANKSMAN_MODELS__",)),
            **({"BANKSMAN_MODELS__DEMO_BASE_URL": demo_url} if demo_url else {}),
        }

    def _gateway(self) -> dict[str, str]:
        return {
            **self._connection("BANKSMAN_GATEWAY__OUTPUTS__", users.GATEWAY_FILES),
            "BANKSMAN_GATEWAY__DEFAULT_MODEL": self.settings.default_model,
            **self._pick(_OFFER),
            **self._notices(),
            "BANKSMAN_GATEWAY__HOST": self.settings.gateway.host,
            "BANKSMAN_GATEWAY__PORT": str(self.gateway_port),
        }

    def _notices(self) -> dict[str, str]:
        """Ours, unless the operator has sentences of their own for the page."""
        variable = "BANKSMAN_GATEWAY__NOTICES"
        return {} if variable in self.inherited or not self.notices else {variable: json.dumps(self.notices)}

    def _runs(self, service: str) -> bool:
        return service not in self.without

    def _pick(self, names: tuple[str, ...], prefixes: tuple[str, ...] = ()) -> dict[str, str]:
        return {
            name: value
            for name, value in self.inherited.items()
            if name in names or name.startswith(prefixes or ("\0",))
        }


def _banksman(service: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "banksman.cli", service)


def _ready_url(port: int) -> str:
    return f"http://127.0.0.1:{port}/readyz"


LAUNCHER = Path(__file__).with_name("child.py")


def launched(command: tuple[str, ...], parent: int) -> tuple[str, ...]:
    """The command behind the launcher that binds its life to `parent`."""
    return (sys.executable, "-I", "-S", str(LAUNCHER), str(parent), *command)
