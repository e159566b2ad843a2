"""compose.yaml on a real engine: its images built, its services started, as `make compose` does it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from banksman.cli.ports import free_port
from tests.support.debian import cache_directory, exclusively, host_release, make_archive
from tests.support.docker_engine import DockerEngine, EngineError
from tests.support.paths import ROOT
from tests.support.privileged import require

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

PLUGIN = "docker-compose"
PLUGIN_RELEASE = "trixie"
"""Debian 12 has no Compose 2; that of the next release is one program that needs nothing else."""
MIN_COMPOSE = (2, 24)
"""The first with `!override`, which the tests' own compose files use."""

MARKER = "banksman-build-secret-7f3c"
"""In both secrets of a build; nothing of them may be found in an image."""

BUILD_TIMEOUT_S = 900.0
UP_TIMEOUT_S = 300.0
TAG = "test"


@dataclass
class Compose:
    """One deployment of compose.yaml: a project name of its own, and a free port for the gateway."""

    engine: DockerEngine
    environment: dict[str, str]
    """What the Docker client gets, `DOCKER_CONFIG` with the plugin's place included."""
    project: str
    overrides: tuple[Path, ...] = ()
    """Compose files that change the deployment, the last wins."""
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        """Where the gateway's published port answers."""
        return f"http://127.0.0.1:{self.port}"

    def run(self, *arguments: str, timeout_s: float = UP_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Run `docker compose` for this deployment, whatever its exit code."""
        files = (ROOT / "compose.yaml", ROOT / "deploy" / "docker" / "compose.build.yaml", *self.overrides)
        return subprocess.run(
            [
                *("docker", "compose", "--ansi", "never", "--project-name", self.project),
                *("--project-directory", str(ROOT), "--env-file", os.devnull),
                *(word for file in files for word in ("--file", str(file))),
                *arguments,
            ],
            env={**self.environment, "BANKSMAN_PORT": str(self.port)},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def __call__(self, *arguments: str, timeout_s: float = UP_TIMEOUT_S) -> str:
        """What `docker compose` prints on success.

        Raises:
            EngineError: when it fails, with what it said and the end of the services' logs.
        """
        done = self.run(*arguments, timeout_s=timeout_s)
        if done.returncode != 0:
            logs = self.run("logs", "--no-color", "--tail", "20").stdout
            said = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}\n{logs}"
            raise EngineError(f"docker compose {' '.join(arguments)}:\n{said}")
        return done.stdout

    def containers(self, service: str) -> list[str]:
        """The ids of a service's containers, ended ones included."""
        return self("ps", "--all", "--quiet", service).split()

    def container(self, service: str) -> str:
        """The id of a service's only container."""
        (found,) = self.containers(service)
        return found

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine knows of a service's only container."""
        return inspect(self.engine, self.container(service))

    def execute(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's only container, as its user, outside of any sandbox."""
        return self.engine.docker("exec", self.container(service), *command, timeout_s=60)

    def down(self) -> None:
        """End and remove everything of this deployment, data included."""
        self("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "30")


def inspect(engine: DockerEngine, container: str) -> dict[str, Any]:
    """What the engine knows of a container."""
    return cast(dict[str, Any], json.loads(engine.output("inspect", container))[0])


def deployment(engine: DockerEngine, base_image: str, directory: Path, project: str) -> Compose:
    """A deployment that is not built yet; `directory` gets the secrets of the build."""
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
    return Compose(engine, {**clean, **_client_plugin(engine), **settings}, project)


def _pip_settings() -> list[str]:
    """A pip.conf with the package registry of this machine, if it is not pip's own."""
    listed = subprocess.run(
        ["pip", "config", "list"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    values = dict(line.split("=", 1) for line in listed.splitlines() if "=" in line)
    found = [value for name, value in values.items() if name.endswith(".index-url")]
    return [f"# {MARKER}", "[global]", *(f"index-url = {value.strip(chr(39))}" for value in found[-1:])]


def _client_plugin(engine: DockerEngine) -> dict[str, str]:
    """The variables that let the client find Compose; fetched when this machine lacks it."""
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
        with tarfile.open(archive) as packed:
            packed.extract(f"./usr/libexec/docker/cli-plugins/{PLUGIN}", partial, filter="data")
        (partial / "usr/libexec/docker/cli-plugins").rename(partial / "cli-plugins")
        partial.rename(directory)
    finally:
        archive.unlink(missing_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
