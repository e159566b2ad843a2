"""compose.yaml on a real engine, built and started through testcontainers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from testcontainers.compose import DockerCompose
from testcontainers.core.container import DockerContainer

from tests.support.debian import cache_directory, exclusively, host_release, make_archive
from tests.support.docker_engine import DockerEngine, EngineError
from tests.support.paths import ROOT
from tests.support.privileged import require

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

PLUGIN = "docker-compose"
PLUGIN_RELEASE = "trixie"
"""Debian 12 has no Compose 2. The package of the next release is one program without dependencies."""
MIN_COMPOSE = (2, 24)
"""The first version with `!override`, which the tests' own compose files use."""

MARKER = "banksman-build-secret-7f3c"
"""Part of both secrets of a build; no image may contain it."""

TIMEOUT_S = 900.0
TAG = "test"
FILES = (str(ROOT / "compose.yaml"), str(ROOT / "deploy" / "docker" / "compose.build.yaml"))


@dataclass
class Stack(DockerCompose):
    """One deployment of compose.yaml, with its own project name and port of the gateway."""

    engine: DockerEngine = field(kw_only=True)
    environment: dict[str, str] = field(kw_only=True)
    """The Docker client's environment, including `DOCKER_CONFIG` with the directory of the plugin."""
    project: str = field(kw_only=True)
    port: int = field(kw_only=True)

    @property
    def url(self) -> str:
        """The address of the gateway's published port."""
        return f"http://127.0.0.1:{self.port}"

    def with_file(self, file: Path) -> Stack:
        """Return the same deployment with one more compose file, which overrides the others."""
        return replace(self, compose_file_name=[*(self.compose_file_name or ()), str(file)])

    def compose(self, *arguments: str) -> str:
        """Run `docker compose` for this deployment, and return its output.

        Raises:
            EngineError: The command failed.
        """
        return self._run_command([*self.compose_command_property, *arguments]).stdout.decode()

    def ids(self, service: str) -> list[str]:
        """Return the ids of a service's containers, including stopped ones."""
        found = [container.ID for container in self.get_containers(True) if container.Service == service]
        return [container for container in found if container]

    def id(self, service: str) -> str:
        """Return the id of a service's only container."""
        (found,) = self.ids(service)
        return found

    def inspect(self, service: str) -> dict[str, Any]:
        """Return the engine's description of a service's only container."""
        return cast(dict[str, Any], json.loads(self.engine.output("inspect", self.id(service)))[0])

    def execute(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's only container, as its user and outside of any sandbox."""
        return self.engine.docker("exec", self.id(service), *command, timeout_s=60)

    def wait_ready(self, *services: str) -> None:
        """Start those of the services that are not running, and wait until they are healthy."""
        self.compose("up", "--detach", "--wait", "--no-recreate", *services)

    def _run_command(
        self, cmd: str | list[str], context: str | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """As in testcontainers, but with the environment of this deployment instead of the tests' own.

        Raises:
            EngineError: The command failed; the message has its output and the end of the services' logs.
        """
        done = self._run(list(cmd))
        if done.returncode != 0:
            logs = self._run([*self.compose_command_property, "logs", "--no-color", "--tail", "20"])
            output = b"\n".join((done.stdout[-4000:], done.stderr[-4000:], logs.stdout))
            raise EngineError(f"{' '.join(cmd)}:\n{output.decode(errors='replace')}")
        return done

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command,
            cwd=self.context,
            env={**self.environment, "BANKSMAN_PORT": str(self.port), "COMPOSE_PROJECT_NAME": self.project},
            capture_output=True,
            timeout=TIMEOUT_S,
        )


def stack_of(engine: DockerEngine, base_image: str, directory: Path, project: str) -> Stack:
    """Return a deployment that is not built yet, and write the secrets of the build to `directory`."""
    certificates = CERTIFICATES.read_text(encoding="utf-8") if CERTIFICATES.exists() else ""
    (directory / "ca.crt").write_text(f"# {MARKER}\n{certificates}", encoding="utf-8")
    (directory / "pip.conf").write_text("\n".join(_pip_settings()) + "\n", encoding="utf-8")
    clean = {
        name: value
        for name, value in engine.environment.items()
        if not name.startswith(("BANKSMAN_", "ANTHROPIC_", "OPENAI_", "COMPOSE_"))
    }
    settings = {
        "BANKSMAN_TAG": TAG,
        "BASE_IMAGE": base_image,
        "BUILD_CA": str(directory / "ca.crt"),
        "BUILD_PIP_CONF": str(directory / "pip.conf"),
    }
    return Stack(
        ROOT,
        list(FILES),
        env_file=os.devnull,
        engine=engine,
        environment={**clean, **_client_plugin(engine), **settings},
        project=project,
        port=engine.free_port(),
    )


@dataclass(frozen=True)
class Ended:
    """The result of a command in a container."""

    stdout: str
    stderr: str


def run_in_image(engine: DockerEngine, image: str, script: str, **options: Any) -> Ended:
    """Run a bash script in a new container without network, and remove it."""
    container = DockerContainer(image, docker_client_kw={"environment": engine.environment})
    container.with_kwargs(entrypoint=["bash", "-c"], network_mode="none", **options).with_command([script])
    with container:
        container.wait()
        stdout, stderr = container.get_logs()
    return Ended(stdout.decode(), stderr.decode())


def _pip_settings() -> list[str]:
    """Return a pip.conf with this machine's package registry, unless that is the default of pip."""
    listed = subprocess.run(
        ["pip", "config", "list"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    values = dict(line.split("=", 1) for line in listed.splitlines() if "=" in line)
    found = [value for name, value in values.items() if name.endswith(".index-url")]
    return [f"# {MARKER}", "[global]", *(f"index-url = {value.strip(chr(39))}" for value in found[-1:])]


def _client_plugin(engine: DockerEngine) -> dict[str, str]:
    """Return the variables that let the client find Compose; fetch Compose if this machine lacks it."""
    if _usable(engine.environment):
        return {}
    directory = cache_directory() / f"client-{PLUGIN_RELEASE}"
    with exclusively(cache_directory() / "client.lock"):
        if not directory.exists() and host_release():
            _fetch_plugin(directory)
    variables = {"DOCKER_CONFIG": str(directory)}
    usable = _usable({**engine.environment, **variables})
    require(f"Docker Compose {'.'.join(map(str, MIN_COMPOSE))}", usable, "compose.yaml in containers")
    return variables


def _usable(environment: dict[str, str]) -> bool:
    command = ["docker", "compose", "version", "--short"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    version = done.stdout.strip().removeprefix("v").partition("-")[0]
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    return numbers >= MIN_COMPOSE


def _fetch_plugin(directory: Path) -> None:
    archive = directory.with_suffix(".tar")
    partial = directory.with_suffix(f".{os.getpid()}")
    make_archive(archive, (PLUGIN,), variant="extract", release=PLUGIN_RELEASE)
    try:
        partial.mkdir()
        # tarfile has extraction filters since Python 3.11.4.
        with tarfile.open(archive) as packed:
            packed.extract(f"./usr/libexec/docker/cli-plugins/{PLUGIN}", partial)
        (partial / "usr/libexec/docker/cli-plugins").rename(partial / "cli-plugins")
        partial.rename(directory)
    finally:
        archive.unlink(missing_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
