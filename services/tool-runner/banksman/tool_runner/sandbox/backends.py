"""Creates the configured sandbox backend and tests it. There is no fall-back to another backend."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import assert_never

from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.sandbox.base import SandboxBackend
from banksman.tool_runner.sandbox.bwrap.cgroup_delegation import NotDelegated, examine
from banksman.tool_runner.sandbox.bwrap.cgroups import CallCgroups, divided
from banksman.tool_runner.sandbox.bwrap.sandbox import BwrapSandbox
from banksman.tool_runner.sandbox.selftest import self_test
from banksman.tool_runner.settings import ToolRunnerSettings

logger = logging.getLogger(__name__)


class BackendFactory:
    """Creates the backend that the settings name, for the workspaces below one root."""

    def __init__(self, root: Path, user: SandboxIdentity, settings: ToolRunnerSettings) -> None:
        self._root = root
        self._user = user
        self._settings = settings
        self._created: SandboxBackend | None = None

    async def create_tested(self) -> tuple[SandboxBackend | None, str | None]:
        """Return a backend that passed the self-test, or None; and the failed checks, or None."""
        report = await self_test(self._root, self._user, self.create)
        if report.ok:
            return self._created, None
        if self._created is not None:
            self._created.close()
        return None, report.summary()

    def create(self) -> SandboxBackend:
        """Create the backend. Blocks."""
        self._created = self._create()
        return self._created

    def _create(self) -> SandboxBackend:
        own = self._settings
        limits, max_output_chars = own.limits.sandbox, own.limits.max_output_chars
        match own.sandbox:
            case "bwrap":
                cgroups = _call_cgroups(self._root)
                return BwrapSandbox(self._user, limits, max_output_chars=max_output_chars, cgroups=cgroups)
            case "docker":
                # Importing the Docker SDK takes longer than the rest of the start.
                from banksman.tool_runner.sandbox.docker.sandbox import DockerSandbox

                return DockerSandbox(
                    self._root, self._user, limits, own.docker, max_output_chars=max_output_chars
                )
            case _:
                assert_never(own.sandbox)


def _call_cgroups(root: Path) -> CallCgroups | None:
    try:
        cgroups = divided(examine(), root)
    except NotDelegated as reason:
        logger.info("commands are limited by rlimits and watchdogs: %s", reason)
        return None
    for hierarchy in cgroups.hierarchies:
        names = ", ".join(sorted(hierarchy.controllers))
        logger.info("each command has a cgroup with %s below %s", names, hierarchy.directory)
    return cgroups
