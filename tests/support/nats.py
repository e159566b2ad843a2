"""A real nats-server for tests: it starts in well under a second, and tests may kill and restart it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast
from urllib.request import urlopen

from banksman.bus.settings import Replicas
from banksman.cli.broker.server import Cluster
from banksman.cli.broker.store import started
from banksman.cli.machine import free_port
from tests.support.polling import wait_until

START_TIMEOUT_S = 30.0
"""Seconds until a server must accept clients; then the test fails with the server's log."""

SERVERS_VARIABLE = "BANKSMAN_TEST_SERVERS"


def servers() -> Replicas:
    """Return the servers of a test's broker, each of which stores every stream: `BANKSMAN_TEST_SERVERS`.

    Raises:
        ValueError: The value is neither 1 nor 3.
    """
    match os.environ.get(SERVERS_VARIABLE) or "1":
        case "1":
            return 1
        case "3":
            return 3
        case other:
            raise ValueError(f"{SERVERS_VARIABLE} is {other!r}, expected 1 or 3")


def executable() -> str:
    """Return the nats-server that the environment installed.

    Raises:
        FileNotFoundError: It is not installed.
    """
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError("nats-server is not installed (extra `local` brings it)")
    return found


class NatsServer:
    """One nats-server with JetStream; its files are in its own directory.

    The port stays the same over restarts, so clients find the server again. As a context manager it starts
    and stops the server, and removes the directory if it created it.
    """

    def __init__(
        self,
        config: str | None = None,
        *,
        directory: Path | None = None,
        name: str = "test",
        launched: bool = False,
    ) -> None:
        """Describe a server.

        Args:
            config: Its configuration, which may contain `{port}`, `{http_port}` and `{store_dir}`.
            directory: The directory of its files; None creates one.
            name: Its name.
            launched: Whether it starts through the launcher of `banksman up` and `banksman nats`.
        """
        self._launched = launched
        self._temporary = tempfile.TemporaryDirectory(prefix="nats-") if directory is None else None
        self.directory = Path(self._temporary.name) if self._temporary else cast(Path, directory)
        self.port = free_port()
        self.http_port = free_port()
        self.name = name
        self.config = config if config is not None else plain_config()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def replicas(self) -> Replicas:
        """The servers that store each stream."""
        return 1

    @property
    def monitoring_url(self) -> str:
        """The address of the monitoring API."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        """Return the process id.

        Raises:
            RuntimeError: The server is not running.
        """
        if self._process is None:
            raise RuntimeError(f"nats-server {self.name} is not running")
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it accepts clients."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the process; `wait_ready` waits for it (nodes of a cluster become ready together)."""
        config_file = self.directory / "nats.conf"
        config_file.write_text(self._rendered(), encoding="utf-8")
        self._log = (self.directory / "nats.log").open("ab")
        command = (executable(), "-c", str(config_file))
        if self._launched:
            command = started(command, self.directory / "store")
        # In its own process group: on the SIGHUP of a closed terminal, nats-server reloads its configuration
        # and may ignore the SIGTERM that follows.
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, process_group=0)

    def wait_ready(self) -> None:
        """Wait until the server responds to clients.

        Raises:
            RuntimeError: The server ended or took too long; the message contains its log.
        """

        def has_ended() -> bool:
            return self._process is None or self._process.poll() is not None

        # Once healthy is enough: each stream that another client creates makes a node unhealthy for a moment.
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: self._healthy() or has_ended(), START_TIMEOUT_S, interval_s=0.01)
            if not has_ended():
                return
        raise RuntimeError(f"nats-server {self.name} did not start:\n{self.log()}")

    def log(self) -> str:
        """Return the server's output so far."""
        return (self.directory / "nats.log").read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """Kill it as `kill -9` does: it flushes nothing and notifies no client."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop it as an operator does."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Freeze it: connections stay open, and it does not respond."""
        self._signal(signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)  # returns when it has stopped

    def resume(self) -> None:
        """Continue after `pause`."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill it, and start it again with the same files and ports."""
        self.kill()
        self.start()

    def varz(self) -> dict[str, Any]:
        """Return the settings and state that the server reports."""
        return cast(dict[str, Any], json.loads(self._get("/varz")))

    def last_seq(self, stream: str) -> int:
        """Return the last sequence of a stream that this server has, from its monitoring endpoint."""
        accounts = json.loads(self._get("/jsz?streams=true")).get("account_details", [])
        streams = [found for account in accounts for found in account.get("stream_detail", [])]
        return max((found["state"]["last_seq"] for found in streams if found["name"] == stream), default=0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server and remove its directory."""
        if self._process is not None:
            self.kill()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _rendered(self) -> str:
        return (
            self.config.replace("{port}", str(self.port))
            .replace("{http_port}", str(self.http_port))
            .replace("{store_dir}", str(self.directory / "store"))
        )

    def _healthy(self) -> bool:
        with contextlib.suppress(OSError):
            return self._get("/healthz") == b'{"status":"ok"}'
        return False

    def _get(self, path: str) -> bytes:
        with urlopen(f"{self.monitoring_url}{path}", timeout=2) as response:
            return cast(bytes, response.read()).strip()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError(f"nats-server {self.name} is not running")
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        self._signal(number)
        assert self._process is not None
        self._process.wait(timeout=START_TIMEOUT_S)
        self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None


def plain_config(*, sync_always: bool = False, max_file_store: str = "20GB") -> str:
    """Return the configuration of a server without accounts, for tests that do not depend on accounts."""
    sync = "sync_interval: always" if sync_always else ""
    return f"""
server_name: "test"
listen: "127.0.0.1:{{port}}"
http: "127.0.0.1:{{http_port}}"
max_payload: 1MB
ping_interval: "5s"
ping_max: 2
jetstream {{ store_dir: "{{store_dir}}", max_file_store: {max_file_store}, {sync} }}
"""


Render = Callable[[NatsServer, Cluster | None], str]
"""Renders the configuration of a server, from the server and its index in a cluster."""


class NatsCluster:
    """Three nodes that replicate; a test may kill any of them. Clients of one node discover the others."""

    replicas: Replicas = 3
    """The servers that store each stream."""

    def __init__(self, render: Render | None = None) -> None:
        """Describe a cluster; it has no accounts without `render`."""
        self.nodes = tuple(NatsServer(name=f"n{number}") for number in (1, 2, 3))
        listens = [f"127.0.0.1:{free_port()}" for _ in self.nodes]
        routes = tuple(f"nats-route://{listen}" for listen in listens)
        for node, listen in zip(self.nodes, listens, strict=True):
            node.config = (render or _plain_node)(node, Cluster(listen, routes))

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses for clients; each of them is enough."""
        return tuple(node.url for node in self.nodes)

    @property
    def url(self) -> str:
        """The address for clients that take only one."""
        return self.nodes[0].url

    @property
    def monitoring_url(self) -> str:
        """The address of the first node's monitoring API."""
        return self.nodes[0].monitoring_url

    def node(self, name: str) -> NatsServer:
        """Return the node of this name, as in the reports of stream and consumer leaders."""
        return next(node for node in self.nodes if node.name == name)

    @property
    def port(self) -> int:
        """The port of the first node."""
        return self.nodes[0].port

    def log(self) -> str:
        """Return the output of all nodes so far."""
        return "\n".join(node.log() for node in self.nodes)

    def start(self) -> None:
        """Start all nodes and wait until they accept clients."""
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_ready()

    def kill(self) -> None:
        """Kill all nodes as `kill -9` does."""
        for node in self.nodes:
            node.kill()

    def stop(self) -> None:
        """Stop all nodes as an operator does."""
        for node in self.nodes:
            node.stop()

    def pause(self) -> None:
        """Freeze all nodes: connections stay open, and no node responds."""
        for node in self.nodes:
            node.pause()

    def resume(self) -> None:
        """Continue after `pause`."""
        for node in self.nodes:
            node.resume()

    def restart(self) -> None:
        """Kill all nodes, and start them again with the same files and ports."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.close()


Broker = NatsServer | NatsCluster
"""The broker of a test."""


def broker(render: Render | None = None) -> Broker:
    """Return one server or three, as `servers` determines; they have no accounts without `render`."""
    if servers() == 3:
        return NatsCluster(render)
    server = NatsServer()
    if render is not None:
        server.config = render(server, None)
    return server


def _plain_node(node: NatsServer, place: Cluster | None) -> str:
    config = plain_config()
    if place is None:
        return config
    routes = ", ".join(f'"{route}"' for route in place.routes)
    cluster = f'cluster {{ name: "{place.name}", listen: "{place.listen}", routes: [{routes}] }}\n'
    return config.replace('"test"', f'"{node.name}"') + cluster
