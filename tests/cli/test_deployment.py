"""compose.yaml: with its keys, settings and files, each service becomes ready.

Containers need an engine. Here each service is a process with addresses of this machine.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

from banksman.cli.machine import free_port
from tests.support.paths import ROOT
from tests.support.polling import wait_until

from .conftest import WAIT_TIMEOUT_S, banksman, environment

WEATHER = "get_current_weather"


class Deployment:
    """The services of compose.yaml, with host names and paths replaced by those of this machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = {name: free_port() for name in ("4222", "8222", "8000", "8080")}
        self.services: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]

    def environment(self, service: str) -> dict[str, str]:
        """Return a service's environment variables."""
        given = self.services[service].get("environment", {})
        pairs = (
            given.items()
            if isinstance(given, dict)
            else (line.split("=", 1) for line in given if "=" in line)
        )
        return {name: self._here(str(value)) for name, value in pairs}

    def command(self, service: str) -> list[str]:
        """Return a service's `banksman` arguments."""
        return [self._here(word) for word in self.services[service]["command"]]

    def nats_config(self) -> Path:
        """Write the deployed configuration with this machine's ports."""
        text = (ROOT / "deploy" / "nats" / "nats.conf").read_text()
        for name in ("4222", "8222"):
            text = text.replace(f'"0.0.0.0:{name}"', f'"127.0.0.1:{self.ports[name]}"')
        config = self.directory / "nats.conf"
        config.write_text(text.replace('"/data"', f'"{self.directory / "data"}"'))
        return config

    def _here(self, text: str) -> str:
        for host, port in (("nats", "4222"), ("nats", "8222"), ("model-server", "8000")):
            text = text.replace(f"{host}:{port}", f"127.0.0.1:{self.ports[port]}")
        for path in ("/keys", "/workspaces"):
            text = text.replace(path, str(self.directory) + path) if text.startswith(path) else text
        return text.replace("/etc/banksman/nats", str(self.directory))


@pytest.fixture(scope="module")
def deployment(reachable_dir: Path) -> Generator[Deployment]:
    """Create keys, start nats-server and provision streams, on which the services depend."""
    deployment = Deployment(reachable_dir)
    (deployment.directory / "workspaces").mkdir()
    deployment.nats_config()
    assert banksman(*deployment.command("keys")).returncode == 0
    with started(deployment.command("nats"), {}):
        path = (deployment.directory / "keys/nats/monitoring.path").read_text()
        wait_for(f"http://127.0.0.1:{deployment.ports['8222']}{path}/healthz")
        provisioned = banksman(*deployment.command("provision"), **deployment.environment("provision"))
        assert provisioned.returncode == 0, provisioned.stderr
        yield deployment


def test_provisioned_streams_pass_the_check(deployment: Deployment) -> None:
    done = banksman("streams", "check", **deployment.environment("provision"))

    assert (done.returncode, done.stdout) == (0, "streams are as strong as required\n"), done.stderr


@pytest.mark.parametrize("service", ["gateway", "agent", "workflows", "tool-runner"])
def test_service_becomes_ready_with_its_compose_settings(
    deployment: Deployment, service: str, tmp_path: Path
) -> None:
    health = free_port()
    variables = deployment.environment(service)
    section = f"BANKSMAN_{service.upper().replace('-', '_')}__"
    assert variables[f"{section}HEALTH_PORT"] == "8081"
    variables |= {f"{section}HEALTH_PORT": str(health)}
    variables.setdefault("BANKSMAN_DATA_DIR", str(tmp_path))
    if service == "gateway":
        variables |= {f"{section}HOST": "127.0.0.1", f"{section}PORT": str(deployment.ports["8080"])}

    with started(deployment.command(service), variables):
        wait_for(f"http://127.0.0.1:{health}/readyz")


def test_every_tenant_is_offered_the_weather_tool(deployment: Deployment, tmp_path: Path) -> None:
    """R59, R60, R61: the services of the file register it, and no variable is needed for that."""
    health, port = free_port(), deployment.ports["8080"]
    listens = {"HOST": "127.0.0.1", "PORT": str(port), "HEALTH_PORT": str(health)}
    own = {
        "gateway": {f"BANKSMAN_GATEWAY__{name}": value for name, value in listens.items()},
        "agent": {"BANKSMAN_AGENT__HEALTH_PORT": str(free_port())},
        "workflows": {"BANKSMAN_WORKFLOWS__HEALTH_PORT": str(free_port())},
    }

    def is_offered() -> bool:
        with contextlib.suppress(URLError, ConnectionError), urlopen(f"{url}/{WEATHER}") as response:
            found = json.load(response)
            return found["available"] and found["tenant"] is None and found["owner"] == "weather"
        return False

    url = f"http://127.0.0.1:{port}/context/tools"
    with contextlib.ExitStack() as stack:
        for service, settings in own.items():
            variables = {"BANKSMAN_DATA_DIR": str(tmp_path / service), **deployment.environment(service)}
            stack.enter_context(started(deployment.command(service), variables | settings))
        wait_until(is_offered, WAIT_TIMEOUT_S)


def test_model_server_responds_at_the_url_of_the_other_services(deployment: Deployment) -> None:
    variables = deployment.environment("model-server") | {
        "BANKSMAN_MODEL_SERVER__HOST": "127.0.0.1",
        "BANKSMAN_MODEL_SERVER__PORT": str(deployment.ports["8000"]),
    }

    with started(deployment.command("model-server"), variables):
        wait_for(f"{deployment.environment('agent')['BANKSMAN_MODELS__DEMO_BASE_URL']}/models")


@contextlib.contextmanager
def started(command: list[str], variables: dict[str, str]) -> Generator[None]:
    """Run a `banksman` command while the context is open."""
    process = subprocess.Popen(
        [sys.executable, "-m", "banksman.cli", *command],
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield
        process.terminate()
        assert process.wait(WAIT_TIMEOUT_S) in (0, 1)
    finally:
        process.kill()
        process.wait()


def wait_for(url: str) -> None:
    """Wait until a URL responds with 200."""

    def responds() -> bool:
        with contextlib.suppress(URLError, OSError), urlopen(url, timeout=2) as response:
            return response.status == 200
        return False

    wait_until(responds, failure=lambda: f"{url} does not respond with 200")
