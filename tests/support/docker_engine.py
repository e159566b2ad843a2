"""A real Docker engine for tests, and a base image made from this machine's own package mirror.

If an engine responds (`DOCKER_HOST`, else the usual socket), tests use it. Otherwise, if tests run as root,
they start one, which runs as long as any test session needs it; its images stay in the cache between runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from testcontainers.core.config import testcontainers_config

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

START_TIMEOUT_S = 60.0
"""Seconds until an engine must respond; then the tests that need it fail with its log."""
STOP_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 600.0
FIRST_USE_TIMEOUT_S = 900
"""Seconds for the first test that uses the engine: it fetches packages and builds images."""

RUN_DIRECTORY = Path("/run/banksman-test-engine")
"""Socket, pid and log of the tests' engine. Only one runs per machine: two conflict over bridge and rules."""

NETWORK_FALLBACKS: tuple[tuple[str, ...], ...] = (
    (),
    ("--iptables=false", "--ip6tables=false"),
    ("--iptables=false", "--ip6tables=false", "--bridge=none"),
)
"""Tried in order: machines differ in the network changes that they allow an engine."""


# testcontainers would pull an image that cleans up after a killed run; `supervised` does that here.
testcontainers_config.ryuk_disabled = True


class EngineError(RuntimeError):
    """An engine did not start, or a command of it failed; the message ends with its output."""


@dataclass(frozen=True)
class DockerEngine:
    """A running engine."""

    host: str
    """Its address in the form of `DOCKER_HOST`: `unix:///run/…`."""

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
    """The engine of this machine, or one that runs during this block.

    Concurrent sessions share the started engine; the last session stops it.

    Raises:
        EngineError: Tests may start an engine here, but every way to do so failed.
    """
    present = DockerEngine(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
    if present.responds():
        yield present
        return
    startable = os.getuid() == 0 and None not in map(shutil.which, ("docker", "dockerd"))
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
    engine = DockerEngine(f"unix://{RUN_DIRECTORY}/docker.sock")
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
    for network in NETWORK_FALLBACKS:
        with _forwarding_kept():
            _launch(engine, network)
            _wait(lambda: _ended().exists() or engine.responds(), START_TIMEOUT_S)
        if engine.responds():
            _remove_leftovers(engine)
            return
        _stop()
    raise EngineError(f"dockerd did not start:\n{_log_end()}")


@contextmanager
def _forwarding_kept() -> Generator[None]:
    """Preserve forwarding: an engine that enables it drops foreign packets, which other tests forward."""
    before = _forward_policy()
    yield
    if before == "ACCEPT" != _forward_policy():
        subprocess.run(["iptables", "--wait", "--policy", "FORWARD", before], check=True, timeout=30)


def _forward_policy() -> str:
    if shutil.which("iptables") is None:
        return ""
    command = ["iptables", "--wait", "--list-rules", "FORWARD"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return listed.stdout.partition("\n")[0].removeprefix("-P FORWARD ")


def _launch(engine: DockerEngine, network: tuple[str, ...]) -> None:
    # Not a child of this run, which may end while another run still uses the engine.
    _ended().unlink(missing_ok=True)
    command = [
        "dockerd",
        *("--host", engine.host),
        *("--data-root", str(cache_directory() / "engine")),
        *("--exec-root", str(RUN_DIRECTORY / "exec")),
        *("--pidfile", str(_pid_file())),
        *network,
    ]
    # Its container processes name this directory too, so all of them outlive this run while others use them.
    supervised.spare(str(RUN_DIRECTORY))
    script = f"{shlex.join(command)} >>{_log()} 2>&1 </dev/null; echo $? >{_ended()}"
    subprocess.run(["setsid", "--fork", "sh", "-c", script], check=True)


def _stop() -> None:
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int(_pid_file().read_text()), signal.SIGTERM)
    if not _wait(_ended().exists, STOP_TIMEOUT_S):
        raise EngineError(f"dockerd did not stop:\n{_log_end()}")


def _log_end() -> str:
    return _log().read_text(encoding="utf-8", errors="replace")[-4000:]


def _remove_leftovers(engine: DockerEngine) -> None:
    """Remove containers, volumes and networks that an interrupted test run left on the tests' own engine."""
    if containers := engine.output("ps", "--all", "--quiet").split():
        engine.output("rm", "--force", "--volumes", *containers)
    if volumes := engine.output("volume", "ls", "--quiet").split():
        engine.output("volume", "rm", "--force", *volumes)
    engine.output("network", "prune", "--force")


def _pid_file() -> Path:
    return RUN_DIRECTORY / "dockerd.pid"


def _log() -> Path:
    return RUN_DIRECTORY / "dockerd.log"


def _ended() -> Path:
    return RUN_DIRECTORY / "ended"


def _wait(met: Callable[[], bool], timeout_s: float) -> bool:
    try:
        return wait_until(met, timeout_s, interval_s=0.05)
    except TimeoutError:
        return False


def ensure_base_image(engine: DockerEngine) -> str:
    """Return the name of the base image; create and import it if the engine lacks it (about a minute).

    Raises:
        MirrorError: The packages cannot be fetched.
        EngineError: The image cannot be imported.
    """
    recipe = _recipe()
    with exclusively(cache_directory() / "base-image.lock"):
        if _imported_recipe(engine) != recipe:
            archive = cache_directory() / f"base-{recipe}.tar"
            if not archive.exists():
                make_archive(archive, PACKAGES, variant="minbase", release=host_release())
            label = f"LABEL banksman.test.recipe={recipe}"
            engine.output("import", "--change", 'CMD ["bash"]', "--change", label, str(archive), BASE_IMAGE)
    return BASE_IMAGE


def _recipe() -> str:
    return hashlib.sha256(repr((PACKAGES, UNNEEDED, host_release())).encode()).hexdigest()[:12]


def _imported_recipe(engine: DockerEngine) -> str:
    template = '{{index .Config.Labels "banksman.test.recipe"}}'
    return engine.docker("image", "inspect", "--format", template, BASE_IMAGE).stdout.strip()


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
    return ensure_base_image(docker_engine)


def main() -> None:
    """Stop the engine if no run uses it; the reaper of a killed run calls this."""
    with (RUN_DIRECTORY / "users").open("a") as users:
        _leave(users.fileno())


if __name__ == "__main__":
    main()
