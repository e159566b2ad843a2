"""Versions of the system that run side by side: the current one, an earlier commit, and a future one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tarfile
from collections.abc import Collection, Mapping
from compileall import compile_dir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from banksman.cli.local.plan import LocalNats
from tests.support.paths import ROOT
from tests.support.timeouts import deadline

_ROOTS = (
    "shared",
    "services/gateway",
    "services/agent",
    "services/tool-runner",
    "services/workflows",
    "services/model-server",
    "cli",
)
"""Directories of the repository that hold the code of a version."""
_CLI, _LEDGER = "banksman.cli", "tests.support.chaos.ledger"
_NEWER = "tests.support.chaos.newer"
_CONFIGURE = """
import asyncio, sys
from pathlib import Path
from banksman.cli.local.plan import LocalNats
from banksman.cli.state import DataDir
path, port, http_port, step = sys.argv[1:]
given = {"http_path": ""} if "http_path" in LocalNats.__dataclass_fields__ else {}
nats = LocalNats(DataDir(Path(path)), port=int(port), http_port=int(http_port), **given)
nats.prepare() if step == "prepare" else asyncio.run(nats.provision())
"""
BrokerStep = Literal["prepare", "provision"]
"""
prepare    write the configuration
provision  create or update the streams
"""


class NoSuchVersion(Exception):
    """The repository does not contain the requested version."""


@dataclass(frozen=True)
class Version:
    """The version of the code that a process runs."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    is_future: bool = False
    unknown_settings: frozenset[str] = frozenset()
    """Variables of this version's launcher that its processes refuse."""

    def command(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """Return a process's command in this version."""
        if not self.is_future or not {_CLI, _LEDGER} & set(command):
            return command
        words = {_CLI: (_NEWER,), _LEDGER: (_NEWER, "ledger")}
        return tuple(word for given in command for word in words.get(given, (given,)))

    def variables(self, current: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a process in this version."""
        known = {name: value for name, value in current.items() if name not in self.unknown_settings}
        return {**known, **self.environment}

    async def configure_broker(self, nats: LocalNats, step: BrokerStep) -> None:
        """Write the configuration of the broker, or create its streams, as this version does.

        Raises:
            CalledProcessError: This version failed.
        """
        arguments = (str(nats.data.path), str(nats.port), str(nats.http_port), step)
        command = (sys.executable, "-c", _CONFIGURE, *arguments)
        process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **self.environment})
        async with deadline(f"{self.name} did not end the step {step} of the broker"):
            code = await process.wait()
        if code:
            raise subprocess.CalledProcessError(code, command)


CURRENT = Version("current")
FUTURE = Version("future", {"PYTHONPATH": str(ROOT)}, is_future=True)
"""Writes parts that this version does not know; see `newer`, which its processes import from the tests."""


def version_at(ref: str, directory: Path, unknown_settings: Collection[str] = ()) -> Version:
    """Unpack the sources of a commit and return the version, which uses the packages of this environment.

    Args:
        ref: A name that git knows: a tag, a branch, `HEAD~60`.
        directory: The directory for its sources.
        unknown_settings: Variables that its processes refuse.

    Raises:
        NoSuchVersion: The repository has no such commit. A shallow clone has only the newest commits.
    """
    packed = directory / "sources.tar"
    made = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--output", str(packed), f"{ref}^{{commit}}", *_ROOTS],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        hint = "a shallow clone has only the newest commits: git fetch --unshallow"
        raise NoSuchVersion(f"{ref}: {made.stderr.strip()} ({hint})")
    # No extraction filter: the archive is of our own repository, and Python before 3.11.4 has no filters.
    with tarfile.open(packed) as archive:
        archive.extractall(directory)
    # Otherwise each process compiles all modules at its start, and all processes start at the same time.
    compile_dir(directory, quiet=2)
    # PYTHONPATH precedes the paths of the environment, so Python imports the packages of this version.
    paths = ":".join(str(directory / root) for root in _ROOTS)
    return Version(ref, {"PYTHONPATH": paths}, unknown_settings=frozenset(unknown_settings))
