"""Every service waits, and reports the reason, while NATS is weaker than required."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from banksman.cli.machine import free_port
from tests.support.fixtures import provision_all
from tests.support.nats import NatsServer, plain_config
from tests.support.polling import wait_until

pytestmark = [pytest.mark.timeout(180), pytest.mark.one_server]
WAIT_TIMEOUT_S = 90.0
SERVICES = {
    "gateway": "stream EVENTS is missing",
    "agent": "stream EVENTS is missing",
    "workflows": "stream EVENTS is missing",
    "tool-runner": "stream OBJ_outputs is missing",
}
READY = "ready"
LATE = "server: sync_interval is not `always`, expected `always`"


def test_every_service_is_unready_until_its_streams_exist() -> None:
    """A21: the reason names the missing object; no service needs a restart when it exists."""
    with NatsServer(plain_config(sync_always=True)) as server, _services(server) as urls:
        for service, missing in SERVICES.items():
            _wait(urls[service], missing)
        provision_all(server)
        for service in SERVICES:
            _wait(urls[service], READY)


def test_every_service_is_unready_on_a_server_that_syncs_late() -> None:
    """A21: the reason contains the actual and the expected value."""
    with NatsServer(plain_config()) as server:
        provision_all(server)
        with _services(server) as urls:
            for service in SERVICES:
                _wait(urls[service], LATE)


def test_every_service_that_starts_before_nats_waits_for_it_and_holds_nothing() -> None:
    """A37: each attempt to connect has a time limit here, after which the process must still be there."""
    with NatsServer(plain_config(sync_always=True)) as server:
        provision_all(server)
        server.stop()
        with _services(server, BANKSMAN_NATS__CONNECT_TIMEOUT_S="0.5") as urls:
            for service in SERVICES:
                _wait(urls[service], f"NATS at 127.0.0.1:{server.port}: no connection", check="nats")
            logs = {service: Path(urls["directory"], f"{service}.log") for service in SERVICES}
            for log in logs.values():
                wait_until(lambda log=log: log.read_text().count("no connection as") >= 3)
            server.start()
            for service in SERVICES:
                _wait(urls[service], READY)


@contextmanager
def _services(server: NatsServer, **settings: str) -> Generator[dict[str, str]]:
    """One of each service, with the URL of its readiness, and the `directory` of their logs."""
    processes: list[subprocess.Popen[bytes]] = []
    urls: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="banksman-") as name:
        Path(name).chmod(0o711)
        try:
            for service in SERVICES:
                port = free_port()
                urls[service] = f"http://127.0.0.1:{port}/readyz"
                processes.append(_start(service, server, port, Path(name), settings))
            urls["directory"] = name
            yield urls
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _start(
    service: str, server: NatsServer, port: int, data: Path, more: dict[str, str]
) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BANKSMAN_")}
    settings = {
        "BANKSMAN_NATS__URL": server.url,
        "BANKSMAN_NATS__MONITORING_URL": server.monitoring_url,
        "BANKSMAN_DATA_DIR": str(data),
        "BANKSMAN_APPROVALS__SIGNING_KEY": "k" * 32,
        "BANKSMAN_MODELS__DEMO_BASE_URL": "http://127.0.0.1:9/v1",
        f"BANKSMAN_{service.upper().replace('-', '_')}__HEALTH_PORT": str(port),
    }
    if service == "gateway":
        settings["BANKSMAN_GATEWAY__PORT"] = str(free_port())
    with (data / f"{service}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "banksman.cli", service],
            env={**kept, **settings, **more},
            stdout=log,
            stderr=log,
        )


def _wait(url: str, words: str, check: str = "streams") -> None:
    """Wait until the readiness of a service contains this text."""
    wait_until(
        lambda: words in _readiness(url, check), interval_s=0.1, failure=lambda: _readiness(url, check)
    )


def _readiness(url: str, check: str) -> str:
    try:
        with urlopen(url, timeout=10) as response:
            return READY if response.status == 200 else "?"
    except HTTPError as refused:
        return str(json.loads(refused.read())["problems"].get(check, "starting"))
    except (URLError, OSError):
        return "not there yet"
