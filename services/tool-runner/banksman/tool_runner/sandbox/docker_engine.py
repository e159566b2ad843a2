from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, cast

import docker
import requests
from docker import errors

from banksman.contracts.wire import JsonObject
from banksman.tool_runner.sandbox.base import SandboxUnavailable

_UPGRADE = {"Connection": "Upgrade", "Upgrade": "tcp"}
_POLL_S = 0.05
_CONFLICT = 409
_STREAMS = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}


class _Client(Protocol):
    """The part of `docker.APIClient` that is used here. Every method raises what `_answering` expects."""

    def info(self) -> JsonObject: ...
    def inspect_image(self, image: str) -> JsonObject: ...
    def inspect_container(self, container: str) -> JsonObject: ...
    def create_container_from_config(self, config: JsonObject, name: str) -> dict[str, str]: ...
    @property
    def base_url(self) -> str: ...
    @property
    def api_version(self) -> str: ...
    def post(
        self, url: str, *, params: Mapping[str, int], headers: Mapping[str, str], stream: bool
    ) -> requests.Response: ...
    def start(self, container: str) -> None: ...
    def remove_container(self, container: str, *, v: bool, force: bool) -> None: ...
    def containers(
        self, *, all: bool, quiet: bool, filters: Mapping[str, Sequence[str]]
    ) -> list[dict[str, str]]: ...
    def close(self) -> None: ...


class _BoundedClient(docker.APIClient):
    """Gives every request a deadline."""

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        options.setdefault("timeout", self.timeout)
        return super().request(*arguments, **options)


class Engine:
    """A Docker engine. Every method blocks for at most a few times the deadline of one request.

    Every method raises `SandboxUnavailable` when the engine does not answer in time or refuses.
    """

    def __init__(self, timeout_s: int) -> None:
        """Connect to the engine that `DOCKER_HOST` names, by default that of this machine."""
        self._timeout_s = timeout_s
        self.address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        with self._answering("connect"):
            client = _BoundedClient(base_url=self.address, version="auto", timeout=timeout_s)
        self._client = cast(_Client, client)

    def runtimes(self) -> frozenset[str]:
        """The OCI runtimes that the engine lists by name."""
        with self._answering("info"):
            return frozenset(cast(dict[str, object], self._client.info().get("Runtimes") or {}))

    def image(self, image: str) -> JsonObject | None:
        """What the engine says of an image; None when it has none of that name."""
        with self._answering(f"inspect image {image}"), contextlib.suppress(errors.NotFound):
            return self._client.inspect_image(image)
        return None

    def container(self, container: str) -> JsonObject | None:
        """What the engine says of a container; None when it has no such container."""
        with self._answering("inspect a container"), contextlib.suppress(errors.NotFound):
            return self._client.inspect_container(container)
        return None

    def labelled(self, label: str) -> list[str]:
        """Ids of the containers, running or not, that have the label `name=value`."""
        with self._answering("list containers"):
            found = self._client.containers(all=True, quiet=True, filters={"label": [label]})
        return [container["Id"] for container in found]

    def create(self, name: str, config: JsonObject) -> None:
        """Create a container."""
        with self._answering("create a container"):
            self._client.create_container_from_config(config, name)

    def attach(self, container: str) -> socket.socket:
        """Standard input and output of a container: what is sent, and frames of what it writes."""
        # The library's `attach_socket` keeps the response, and with it a second socket that nobody closes.
        url = f"{self._client.base_url}/v{self._client.api_version}/containers/{container}/attach"
        with self._answering("attach to a container"):
            with self._client.post(url, params=_STREAMS, headers=_UPGRADE, stream=True) as response:
                _raise_for_status(response)
                connection = socket.socket(fileno=os.dup(response.raw.fileno()))
        connection.setblocking(False)
        return connection

    def start(self, container: str) -> None:
        """Start a container."""
        with self._answering("start a container"):
            self._client.start(container)

    def remove(self, container: str) -> None:
        """Kill a container and remove it; nothing when it is gone, or going."""
        with self._answering("remove a container"):
            try:
                self._client.remove_container(container, v=True, force=True)
            except errors.NotFound:
                pass
            except errors.APIError as error:
                if error.status_code != _CONFLICT:
                    raise
                self._await_removal(container)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def _await_removal(self, container: str) -> None:
        """Wait for a removal that the engine has begun: processes may not have ended yet."""
        deadline = time.monotonic() + self._timeout_s
        with contextlib.suppress(errors.NotFound):
            while time.monotonic() < deadline:
                self._client.inspect_container(container)
                time.sleep(_POLL_S)
            raise SandboxUnavailable(
                f"the Docker engine has not removed {container} within {self._timeout_s} s"
            )

    def _knock(self) -> None:
        """Connect to a local engine, and leave: the library leaks a socket that cannot connect."""
        scheme, _, path = self.address.partition("://")
        if scheme == "unix":
            with socket.socket(socket.AF_UNIX) as visitor:
                visitor.settimeout(self._timeout_s)
                visitor.connect(path)

    @contextlib.contextmanager
    def _answering(self, action: str) -> Generator[None]:
        """Name the engine, and what it did not do."""
        try:
            self._knock()
            yield
        except errors.APIError as error:
            raise SandboxUnavailable(
                f"the Docker engine refused to {action}: {_said(error)}",
                remedy="Give the engine what it lacks, or change tool_runner.docker.",
            ) from error
        except (errors.DockerException, requests.RequestException, OSError) as error:
            raise SandboxUnavailable(
                f"the Docker engine at {self.address} does not answer ({action}): {_first_line(error)}",
                remedy="Start the engine, or name another in DOCKER_HOST, and let this user use its socket.",
            ) from error


def _raise_for_status(response: requests.Response) -> None:
    try:
        response.raise_for_status()
    except requests.HTTPError as error:
        errors.create_api_error_from_http_exception(error)


def _said(error: errors.APIError) -> str:
    return str(cast(object, error.explanation) or error)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
