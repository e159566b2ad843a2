"""The Docker engine: its requests, the configuration of containers, and the runner's paths on its host."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import re
import socket
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import docker
import requests
from docker import errors

from banksman.contracts.wire import JsonObject
from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.sandbox.base import ENVIRONMENT, SandboxUnavailable
from banksman.tool_runner.sandbox.docker import supervisor
from banksman.tool_runner.sandbox.docker.container import PROXY_MOUNT
from banksman.tool_runner.sandbox.etc import DIRECTORY
from banksman.tool_runner.sandbox.seccomp import command_filter
from banksman.tool_runner.settings import MIB, SandboxLimits

log = logging.getLogger(__name__)

INSTALLATION_LABEL = "banksman.installation"
INSTANCE_LABEL = "banksman.instance"
WORKSPACE_LABEL = "banksman.workspace"
SCRATCH_INODES = 16 * 1024
"""Files per directory of scratch space: an empty file needs kernel memory too."""
_SUPERVISOR_BYTES = 64 * MIB
_SUPERVISOR_PROCESSES = 8
_SUPERVISOR = Path(supervisor.__file__).read_text(encoding="utf-8")

_ETC_FILES = ("passwd", "group", "hosts")
"""Files that replace those of an image, whose lists do not contain the user of commands."""
_UPGRADE = {"Connection": "Upgrade", "Upgrade": "tcp"}
_POLL_S = 0.05
_CONFLICT = 409
_STREAMS = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
_OWN_FILES = re.compile(r"/containers/([0-9a-f]{64})/(?:hostname|hosts|resolv\.conf)\b")
"""Files that an engine mounts into each container, as `/proc/self/mountinfo` lists them."""


class _BoundedClient(docker.APIClient):
    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        options.setdefault("timeout", self.timeout)
        return super().request(*arguments, **options)


class Engine:
    """A client of a Docker engine. Each method blocks for at most a few times the time-out of one request.

    Each method raises `SandboxUnavailable` if the engine refuses or does not respond in time.
    """

    def __init__(self, timeout_s: int) -> None:
        self._timeout_s = timeout_s
        self.address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        with self._requesting("connect"):
            # Of any type: the type stubs of the SDK leave the results of its methods out.
            self._client: Any = _BoundedClient(base_url=self.address, version="auto", timeout=timeout_s)

    def runtimes(self) -> frozenset[str]:
        with self._requesting("info"):
            return frozenset(cast(dict[str, object], self._client.info().get("Runtimes") or {}))

    def image(self, image: str) -> JsonObject | None:
        with self._requesting(f"inspect image {image}"), contextlib.suppress(errors.NotFound):
            return self._client.inspect_image(image)
        return None

    def container(self, container: str) -> JsonObject | None:
        with self._requesting("inspect a container"), contextlib.suppress(errors.NotFound):
            return self._client.inspect_container(container)
        return None

    def labelled(self, label: str) -> list[str]:
        with self._requesting("list containers"):
            found = self._client.containers(all=True, quiet=True, filters={"label": [label]})
        return [container["Id"] for container in found]

    def create(self, name: str, config: JsonObject) -> None:
        with self._requesting("create a container"):
            self._client.create_container_from_config(config, name)

    def attach(self, container: str) -> socket.socket:
        """Connect to standard input and output of a container; output arrives in the engine's frames."""
        # The SDK's `attach_socket` stores the response, and with it a second socket that is never closed.
        url = f"{self._client.base_url}/v{self._client.api_version}/containers/{container}/attach"
        with self._requesting("attach to a container"):
            with self._client.post(url, params=_STREAMS, headers=_UPGRADE, stream=True) as response:
                _raise_for_status(response)
                connection = socket.socket(fileno=os.dup(response.raw.fileno()))
        connection.setblocking(False)
        return connection

    def start(self, container: str) -> None:
        with self._requesting("start a container"):
            self._client.start(container)

    def remove(self, container: str) -> None:
        """Kill and remove a container; do nothing if it is already removed or being removed."""
        with self._requesting("remove a container"):
            try:
                self._client.remove_container(container, v=True, force=True)
            except errors.NotFound:
                pass
            except errors.APIError as error:
                if error.status_code != _CONFLICT:
                    raise
                self._await_removal(container)

    def close(self) -> None:
        self._client.close()

    def _await_removal(self, container: str) -> None:
        """Wait for a removal that the engine has already started: processes may still run."""
        deadline = time.monotonic() + self._timeout_s
        with contextlib.suppress(errors.NotFound):
            while time.monotonic() < deadline:
                self._client.inspect_container(container)
                time.sleep(_POLL_S)
            raise SandboxUnavailable(
                f"the Docker engine has not removed {container} within {self._timeout_s} s"
            )

    def _check_socket(self) -> None:
        """Try to connect to a local engine first: the SDK leaks its socket if the connection fails."""
        scheme, _, path = self.address.partition("://")
        if scheme == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(self._timeout_s)
                probe.connect(path)

    @contextlib.contextmanager
    def _requesting(self, action: str) -> Generator[None]:
        try:
            self._check_socket()
            yield
        except errors.APIError as error:
            explanation = cast(object, error.explanation) or error
            raise SandboxUnavailable(
                f"the Docker engine refused to {action}: {explanation}",
                remedy="Fix the engine, or change tool_runner.docker.",
            ) from error
        except (errors.DockerException, requests.RequestException, OSError) as error:
            first_line = str(error).partition("\n")[0][:300]
            raise SandboxUnavailable(
                f"the Docker engine at {self.address} does not respond ({action}): {first_line}",
                remedy="Start the engine, or set DOCKER_HOST to another one; let this user use its socket.",
            ) from error


def _raise_for_status(response: requests.Response) -> None:
    try:
        response.raise_for_status()
    except requests.HTTPError as error:
        errors.create_api_error_from_http_exception(error)


@dataclass(frozen=True, slots=True)
class HostDirectory:
    path: Path
    host_path: Path

    def of(self, directory: Path) -> Path:
        return self.host_path / directory.resolve().relative_to(self.path)


def find_host_directory(root: Path, host_dir: Path | None, own: JsonObject | None) -> HostDirectory:
    """Return the location of `root` on the engine's host.

    It is `host_dir` if set. Otherwise it is found in `own`, the engine's description of the runner's own
    container, and refused if no volume contains it: no other container could mount it. Outside of a
    container, it is the same path.
    """
    path = root.resolve()
    if host_dir is not None:
        return HostDirectory(path, host_dir)
    if own is None:
        return HostDirectory(path, path)
    mounts = cast(list[dict[str, str]], own.get("Mounts") or [])
    holding = [mount for mount in mounts if path.is_relative_to(mount["Destination"])]
    if not holding:
        raise SandboxUnavailable(
            f"the workspaces in {path} are not on a volume of the runner's container",
            remedy="Mount a volume or a directory of the host there.",
        )
    mount = max(holding, key=lambda mount: len(mount["Destination"]))
    return HostDirectory(path, Path(mount["Source"]) / path.relative_to(mount["Destination"]))


def own_container(engine: Engine) -> JsonObject | None:
    with contextlib.suppress(OSError):
        found = _OWN_FILES.search(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
        return engine.container(found[1]) if found else None
    return None


def _mount(source: Path, target: str, *, read_only: bool = False) -> JsonObject:
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": read_only}


@dataclass(frozen=True, slots=True)
class ContainerRecipe:
    image: str
    """The image of commands without a toolchain."""
    runtime: str | None
    cpus: float
    identity: SandboxIdentity
    limits: SandboxLimits
    installation: str
    """Identifies the directory of the workspaces, which one process at a time serves."""
    instance: str
    """Identifies this process."""

    etc: Path
    """The directory with the files of `write_etc` on the engine's host."""

    def config(
        self, image: str, source: Path, workspace: str, packets: Path, beside: str | None
    ) -> JsonObject:
        """Return the body of the engine's `POST /containers/create`.

        `source` and `packets` are directories on the engine's host: the workspace, whose name in the label is
        `workspace`, and that of the container's proxy. The container shares the network namespace of
        `beside`, if it is not None.
        """
        return {
            "Image": image,
            "Entrypoint": ["python3", "-I", "-S", "-c", _SUPERVISOR, self._rules()],
            "Cmd": [],
            "Env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
            "User": f"{self.identity.uid}:{self.identity.gid}",
            "WorkingDir": supervisor.WORKSPACE,
            # The engine refuses a name beside another container, whose name it has.
            **({"Hostname": "sandbox", "NetworkDisabled": True} if beside is None else {}),
            "Labels": {
                INSTALLATION_LABEL: self.installation,
                INSTANCE_LABEL: self.instance,
                WORKSPACE_LABEL: workspace,
            },
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "OpenStdin": True,
            # When the runner's connection closes, the engine closes the supervisor's input, which ends the
            # container.
            "StdinOnce": True,
            "Tty": False,
            "Healthcheck": {"Test": ["NONE"]},
            "StopSignal": "SIGKILL",
            "HostConfig": {
                **self._limited(),
                "NetworkMode": "none" if beside is None else f"container:{beside}",
                "Mounts": [
                    _mount(source, supervisor.WORKSPACE),
                    _mount(packets, PROXY_MOUNT, read_only=True),
                    *self._etc_mounts(),
                ],
            },
        }

    def _limited(self) -> JsonObject:
        limits = self.limits
        memory_bytes = limits.memory_bytes + limits.tmp_bytes + limits.home_bytes + limits.shm_bytes
        config: JsonObject = {
            # Also removes the container if the runner is killed.
            "AutoRemove": True,
            "IpcMode": "private",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "ReadonlyRootfs": True,
            # The supervisor must be pid 1 to inherit orphans and to reach all processes with kill(-1).
            "Init": False,
            "PidsLimit": limits.max_processes + _SUPERVISOR_PROCESSES,
            "Memory": memory_bytes + _SUPERVISOR_BYTES,
            # Equal to Memory: no swap. Without it, the engine grants the same amount of swap again.
            "MemorySwap": memory_bytes + _SUPERVISOR_BYTES,
            "NanoCpus": round(self.cpus * 1e9),
            "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
            "Tmpfs": {
                "/tmp": self._scratch(limits.tmp_bytes),  # noqa: S108 - inside the sandbox
                "/home": self._scratch(limits.home_bytes),
            },
            "ShmSize": limits.shm_bytes,
            # Output goes to the runner only; a log driver would fill the host's disk.
            "LogConfig": {"Type": "none"},
        }
        return config if self.runtime is None else {**config, "Runtime": self.runtime}

    def _etc_mounts(self) -> Iterator[JsonObject]:
        yield _mount(self.etc, DIRECTORY, read_only=True)
        for name in _ETC_FILES:
            yield _mount(self.etc / name, f"/etc/{name}", read_only=True)

    def _rules(self) -> str:
        limits = self.limits
        rules = {
            "limits": {
                "DATA": limits.data_bytes,
                "FSIZE": limits.file_size_bytes,
                "NOFILE": limits.max_open_files,
                "CORE": 0,
            },
            "memory_bytes": limits.memory_bytes,
            "unlinked_bytes": limits.max_unlinked_bytes,
            "watch_s": limits.watchdog_interval_s,
            "scratch": ["/tmp", "/home", "/dev/shm"],  # noqa: S108 - inside the sandbox
            "seccomp": base64.b64encode(command_filter()).decode(),
        }
        return json.dumps(rules)

    def _scratch(self, size_bytes: int) -> str:
        # runc overrides mode= with the mode that the directory has in the image, so the owner is set too.
        owner = f"uid={self.identity.uid},gid={self.identity.gid}"
        return f"rw,exec,nosuid,nodev,{owner},mode=0700,size={size_bytes},nr_inodes={SCRATCH_INODES}"


def checked_image(engine: Engine, image: str) -> str:
    found = engine.image(image)
    if found is None:
        raise SandboxUnavailable(
            f"the Docker engine has no image {image}",
            remedy=f"Run `docker pull {image}`, or set tool_runner.docker.image to another image.",
        )
    config = cast(dict[str, dict[str, object] | None], found.get("Config") or {})
    if volumes := config.get("Volumes"):
        raise SandboxUnavailable(
            f"the image {image} declares volumes ({', '.join(volumes)}), which commands could fill",
            remedy="Set tool_runner.docker.image to another image.",
        )
    return image


def checked_runtime(engine: Engine, runtime: str | None) -> str | None:
    # The engine does not list the names of shims, such as io.containerd.runsc.v1, but accepts them.
    if runtime is None or "." in runtime or runtime in (known := engine.runtimes()):
        return runtime
    raise SandboxUnavailable(
        f"the Docker engine does not know the runtime {runtime!r}; it knows {', '.join(sorted(known))}",
        remedy="Add it to the engine's daemon.json, or remove tool_runner.docker.runtime.",
    )


def remove_orphans(engine: Engine, label: str) -> None:
    orphans = engine.labelled(label)
    for orphan in orphans:
        engine.remove(orphan)
    if orphans:
        log.warning("%d containers of an earlier runner were removed", len(orphans))
