from __future__ import annotations

from pathlib import Path

from pydantic import Field

from banksman.runtime.settings import Section

DEFAULT_IMAGE = "python:3.11-slim-bookworm"


class DockerSettings(Section):
    """Containers of workspaces, where `sandbox` is `docker`, by the engine that `DOCKER_HOST` names."""

    image: str | None = None
    """What commands find beside their workspace; it needs bash, coreutils, findutils and Python 3.9 or newer,
    and declares no volumes. It is never pulled. None takes the image of the runner's own container, or
    `python:3.11-slim-bookworm` when the runner runs in none."""
    runtime: str | None = None
    """The engine's name of an OCI runtime, such as `runsc`. None takes the engine's default."""
    host_dir: Path | None = None
    """Where the engine's host has the directory of the workspaces. None takes the runner's own path, or, when
    the runner runs in a container, what the engine says of that container's mounts."""
    cpus: float = Field(default=1.0, gt=0)
    """Processors' worth of time that one container gets."""
    idle_s: float = Field(default=300.0, gt=0)
    """Seconds without a command after which the container of a workspace is removed."""
    max_containers: int = Field(default=32, ge=1)
    """Containers at a time; for one more, the one that was idle longest is removed. Those with a command that
    runs are never among them, so there may be as many as commands at a time."""
    start_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds that a container may take to start before the call is refused."""
    engine_timeout_s: int = Field(default=20, ge=1)
    """Seconds that the engine may take for one request before it counts as gone."""
