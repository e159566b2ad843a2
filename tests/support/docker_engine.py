"""A real Docker engine for tests, and a base image made from this machine's own package mirror.

Tests that run as root start an engine, which runs as long as any test session needs it; its images stay in
the cache between runs. It has a network namespace of its own: two engines in one namespace overwrite each
other's rules, and the containers of a developer would lose their network. `DOCKER_HOST` names another engine.
Users other than root need that, or the usual socket.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from testcontainers.core.config import testcontainers_config

from banksman.cli.machine import free_port
from tests.support import supervised
from tests.support.debian import UNNEEDED, cache_directory, exclusively, host_release, make_archive
from tests.support.polling import wait_until
from tests.support.privileged import require

BASE_IMAGE = "banksman-base:test"
"""Replaces the public base image of deploy/docker/Dockerfile: Python, a shell, coreutils."""

PACKAGES = (
    "ca-certificates",
    "findutils",
    "netbase",
    "procps",
    "python-is-python3",
    "python3",
    "python3-venv",
    "util-linux",
)

IMAGE_WITH_PROGRAMS = "banksman-programs:test"
WITH_PROGRAMS = (
    *PACKAGES,
    *("curl", "git", "jq", "make", "nodejs", "npm", "openssh-client", "patch", "perl", "python3-pip"),
    *("python3-pytest", "sqlite3", "tzdata", "unzip"),
)
"""Packages with which an operator's image offers the usual programs to commands."""

START_TIMEOUT_S = 60.0
"""Seconds until an engine must respond; then the tests that need it fail with its log."""
STOP_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 600.0
FIRST_USE_TIMEOUT_S = 900
"""Seconds for the first test that uses the engine: it fetches packages and builds images."""

RUN_DIRECTORY = Path("/run/banksman-test-engine")
"""Socket, pids and log of the tests' engine, which all test sessions of a machine share."""
NAMESPACE = RUN_DIRECTORY.name
"""The engine's network namespace. A process connects it to the machine, which needs no rule for that."""
PORTS = range(28_600, 28_650)
"""The ports of this machine that lead to the same ports of the namespace, for containers that publish one."""
_INSIDE = ("nsenter", f"--net=/run/netns/{NAMESPACE}")


# testcontainers would pull an image that cleans up after a killed run; `supervised` does that here.
testcontainers_config.ryuk_disabled = True


class EngineError(RuntimeError):
    """An engine did not start, or a command of it failed; the message ends with its output."""


@dataclass(frozen=True)
class DockerEngine:
    """A running engine."""

    host: str
    """Its address in the form of `DOCKER_HOST`: `unix:///run/…`."""
    ports: tuple[int, ...] = ()
    """Ports that containers may publish to this machine; empty for all of an engine without a namespace."""

    @property
    def environment(self) -> dict[str, str]:
        """Return this process's environment with `DOCKER_HOST` set, for any Docker client."""
        return {**os.environ, "DOCKER_HOST": self.host}

    def docker(
        self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run the `docker` client with its output captured, whatever its exit code."""
        return subprocess.run(
            ["docker", *arguments], env=self.environment, capture_output=True, text=True, timeout=timeout_s
        )

    def output(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Return the output of a successful `docker` command, stripped.

        Raises:
            EngineError: The command failed.
        """
        done = self.docker(*arguments, timeout_s=timeout_s)
        if done.returncode != 0:
            raise EngineError(f"docker {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
        return done.stdout.strip()

    def free_port(self, *reserved: int) -> int:
        """Return a port that a container can publish and tests reach at 127.0.0.1; none of `reserved`."""
        published = self.output("ps", "--format", "{{.Ports}}")
        free = [port for port in self.ports if f":{port}->" not in published and port not in reserved]
        return random.choice(free) if free else free_port()

    def responds(self) -> bool:
        """Return whether the engine responds."""
        if shutil.which("docker") is None:
            return False
        try:
            return self.docker("version", "--format", "{{.Server.Version}}", timeout_s=10).returncode == 0
        except subprocess.TimeoutExpired:
            return False


@contextmanager
def running_engine() -> Generator[DockerEngine]:
    """The engine of the tests, which runs during this block, or the one that `DOCKER_HOST` names.

    Concurrent sessions share the started engine; the last session stops it.

    Raises:
        EngineError: Tests may start an engine here, but it did not start.
    """
    startable = os.getuid() == 0 and None not in map(shutil.which, ("docker", "dockerd", "ip", "slirp4netns"))
    present = DockerEngine(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
    if ("DOCKER_HOST" in os.environ or not startable) and present.responds():
        yield present
        return
    require("a Docker engine", startable, "tests with containers")
    RUN_DIRECTORY.mkdir(mode=0o700, exist_ok=True)
    with (RUN_DIRECTORY / "users").open("a") as users:
        with supervised.cleaned_up_by([sys.executable, "-m", "tests.support.docker_engine", "leave"]):
            engine = _join(users.fileno())
            try:
                yield engine
            finally:
                _leave(users.fileno())


def _join(users: int) -> DockerEngine:
    engine = DockerEngine(f"unix://{RUN_DIRECTORY}/docker.sock", tuple(PORTS))
    with exclusively(RUN_DIRECTORY / "lock"):
        if not engine.responds():
            _start(engine)
        fcntl.flock(users, fcntl.LOCK_SH)
    return engine


def _leave(users: int) -> None:
    with exclusively(RUN_DIRECTORY / "lock"):
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        _stop()


def _start(engine: DockerEngine) -> None:
    _remove_namespace()
    _create_namespace()
    _launch(engine)
    _wait(lambda: _ended().exists() or engine.responds(), START_TIMEOUT_S)
    if not engine.responds():
        _stop()
        raise EngineError(f"dockerd did not start:\n{_log_end()}")
    _remove_leftovers(engine)


def _create_namespace() -> None:
    """Create the namespace, which reaches what this machine reaches, and whose `PORTS` this machine reaches.

    `slirp4netns` forwards its connections, so that no rule, bridge or route of this machine changes.
    """
    _run("ip", "netns", "add", NAMESPACE)
    _run("ip", "-n", NAMESPACE, "link", "set", "lo", "up")
    supervised.spare(str(RUN_DIRECTORY))
    _api().unlink(missing_ok=True)
    path = f"/run/netns/{NAMESPACE}"
    options = ("--configure", "--mtu=1500", "--disable-host-loopback", f"--api-socket={_api()}")
    command = shlex.join(["slirp4netns", *options, "--netns-type=path", path, "tap0"])
    log = RUN_DIRECTORY / "network.log"
    # Not a child of this run, as the engine.
    script = f"echo $$ >{_pid_file('network')}; exec {command} >{log} 2>&1 </dev/null"
    subprocess.run(["setsid", "--fork", "sh", "-c", script], check=True)
    if not _wait(_api().exists, START_TIMEOUT_S):
        raise EngineError("slirp4netns did not start; see network.log")
    # Published ports listen on the loopback interface of the namespace, which forwarded packets do not reach.
    _run(*_INSIDE, "sysctl", "--quiet", "--write", "net.ipv4.conf.tap0.route_localnet=1")
    rule = ("PREROUTING", "--in-interface", "tap0", "--protocol", "tcp", "--jump", "DNAT")
    _run(*_INSIDE, "iptables", "--table", "nat", "--append", *rule, "--to-destination", "127.0.0.1")
    for port in PORTS:
        _forward(port)


def _forward(port: int) -> None:
    arguments = {"proto": "tcp", "host_addr": "127.0.0.1", "host_port": port, "guest_port": port}
    with socket.socket(socket.AF_UNIX) as api:
        api.connect(str(_api()))
        api.sendall(json.dumps({"execute": "add_hostfwd", "arguments": arguments}).encode())
        api.shutdown(socket.SHUT_WR)
        reply = json.loads(api.makefile().read())
    if "error" in reply:
        raise EngineError(f"port {port}: {reply['error']}")


def _remove_namespace() -> None:
    _terminate("network")
    if Path(f"/run/netns/{NAMESPACE}").exists():
        _run("ip", "netns", "delete", NAMESPACE)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise EngineError(f"{shlex.join(command)}: exit {done.returncode}\n{done.stderr}")


def _launch(engine: DockerEngine) -> None:
    # Not a child of this run, which may end while another run still uses the engine.
    _ended().unlink(missing_ok=True)
    command = [
        *_INSIDE,
        "dockerd",
        *("--host", engine.host),
        *("--data-root", str(cache_directory() / "engine")),
        *("--exec-root", str(RUN_DIRECTORY / "exec")),
        *("--pidfile", str(_pid_file("dockerd"))),
    ]
    # Its container processes name this directory too, so all of them outlive this run while others use them.
    supervised.spare(str(RUN_DIRECTORY))
    script = f"{shlex.join(command)} >>{_log()} 2>&1 </dev/null; echo $? >{_ended()}"
    subprocess.run(["setsid", "--fork", "sh", "-c", script], check=True)


def _stop() -> None:
    _terminate("dockerd")
    ended = _wait(_ended().exists, STOP_TIMEOUT_S)
    _remove_namespace()
    if not ended:
        raise EngineError(f"dockerd did not stop:\n{_log_end()}")


def _terminate(program: str) -> None:
    with suppress(FileNotFoundError, ProcessLookupError, ValueError):
        os.kill(int(_pid_file(program).read_text()), signal.SIGTERM)


def _log_end() -> str:
    return _log().read_text(encoding="utf-8", errors="replace")[-4000:]


def _remove_leftovers(engine: DockerEngine) -> None:
    """Remove containers, volumes and networks that an interrupted test run left on the tests' own engine."""
    if containers := engine.output("ps", "--all", "--quiet").split():
        engine.output("rm", "--force", "--volumes", *containers)
    if volumes := engine.output("volume", "ls", "--quiet").split():
        engine.output("volume", "rm", "--force", *volumes)
    engine.output("network", "prune", "--force")


def _pid_file(program: str) -> Path:
    return RUN_DIRECTORY / f"{program}.pid"


def _api() -> Path:
    return RUN_DIRECTORY / "network.sock"


def _log() -> Path:
    return RUN_DIRECTORY / "dockerd.log"


def _ended() -> Path:
    return RUN_DIRECTORY / "ended"


def _wait(met: Callable[[], bool], timeout_s: float) -> bool:
    try:
        return wait_until(met, timeout_s, interval_s=0.05)
    except TimeoutError:
        return False


def ensure_image(engine: DockerEngine, image: str, packages: tuple[str, ...]) -> str:
    """Return `image`; create it of Debian packages and import it if the engine lacks it (about a minute).

    Raises:
        MirrorError: The packages cannot be fetched.
        EngineError: The image cannot be imported.
    """
    recipe = _recipe(packages)
    with exclusively(cache_directory() / "base-image.lock"):
        if _imported_recipe(engine, image) != recipe:
            archive = cache_directory() / f"base-{recipe}.tar"
            if not archive.exists():
                make_archive(archive, packages, variant="minbase", release=host_release())
            label = f"LABEL banksman.test.recipe={recipe}"
            engine.output("import", "--change", 'CMD ["bash"]', "--change", label, str(archive), image)
    return image


def _recipe(packages: tuple[str, ...]) -> str:
    return hashlib.sha256(repr((packages, UNNEEDED, host_release())).encode()).hexdigest()[:12]


def _imported_recipe(engine: DockerEngine, image: str) -> str:
    template = '{{index .Config.Labels "banksman.test.recipe"}}'
    return engine.docker("image", "inspect", "--format", template, image).stdout.strip()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test that needs the engine the time limit of the first one, which builds everything."""
    for item in items:
        if "docker_engine" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(FIRST_USE_TIMEOUT_S))


@pytest.fixture(scope="session")
def docker_engine() -> Generator[DockerEngine]:
    """A real Docker engine: this machine's, or one started for the session."""
    with running_engine() as engine:
        yield engine


@pytest.fixture(scope="session")
def base_image(docker_engine: DockerEngine) -> str:
    """The name of an image on the engine with Python, bash, coreutils, procps, util-linux and findutils."""
    return ensure_image(docker_engine, BASE_IMAGE, PACKAGES)


@pytest.fixture(scope="session")
def image_with_programs(docker_engine: DockerEngine) -> str:
    """The name of an image on the engine with the programs of `WITH_PROGRAMS`."""
    return ensure_image(docker_engine, IMAGE_WITH_PROGRAMS, WITH_PROGRAMS)


def main() -> None:
    """Stop the engine if no run uses it; the reaper of a killed run calls this."""
    with (RUN_DIRECTORY / "users").open("a") as users:
        _leave(users.fileno())


if __name__ == "__main__":
    main()
