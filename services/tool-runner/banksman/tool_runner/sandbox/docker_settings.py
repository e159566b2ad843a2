from __future__ import annotations

from pathlib import Path

from pydantic import Field

from banksman.runtime.settings import Section

DEFAULT_IMAGE = "python:3.11-slim-bookworm"


class DockerSettings(Section):
    """Containers of workspaces if `sandbox` is `docker`. `DOCKER_HOST` names the engine."""

    image: str | None = None
    """Image of the containers. It needs bash, coreutils, findutils and Python 3.9 or newer, and must not
    declare volumes. It is never pulled. None means the image of the runner's own container, or
    `python:3.11-slim-bookworm` if the runner runs in none."""
    runtime: str | None = None
    """The engine's name of an OCI runtime, such as `runsc`. None means the engine's default."""
    host_dir: Path | None = None
    """Directory of the workspaces on the engine's host. None means the runner's own path or, if the runner
    runs in a container, the path that the engine reports for that container's mounts."""
    cpus: float = Field(default=1.0, gt=0)
    """Processors that one container may use."""
    idle_s: float = Field(default=300.0, gt=0)
    """Seconds without a command after which the container of a workspace is removed."""
    max_containers: int = Field(default=32, ge=1)
    """Maximum number of containers. Before another one starts, the longest idle one is removed. A container
    with a running command is never removed, so there may be as many containers as concurrent commands."""
    start_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds within which a container must start; otherwise the call is refused."""
    engine_timeout_s: int = Field(default=20, ge=1)
    """Seconds within which the engine must complete a request; otherwise it counts as unavailable."""
