"""Functions of the tool-runner that the CLI calls on this machine. The CLI imports this module by name.

`banksman doctor` prints `checks`; `banksman reset` deletes `workspaces_root`; `banksman up` starts `runners`.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from banksman.contracts.ids import new_id
from banksman.runtime.settings import load
from banksman.tool_runner.identity import sandbox_identity, stored_id
from banksman.tool_runner.sandbox.base import ENVIRONMENT
from banksman.tool_runner.sandbox.bwrap.cgroups import NotDelegated, examine
from banksman.tool_runner.settings import DEFAULT_IMAGE, ToolRunnerServiceSettings
from banksman.tool_runner.workspaces.beneath import kernel_resolves_beneath
from banksman.tool_runner.workspaces.workspace import default_root

USUAL_PROGRAMS = (
    *("git", "make", "python3", "pip3", "pytest", "node", "npm", "perl", "gcc"),
    *("sqlite3", "curl", "jq", "patch", "ssh-keygen", "tar", "unzip"),
)
"""Programs that commands of models often run."""
_IMAGE_TIMEOUT_S = 20


def checks(sandbox: str) -> dict[str, str]:
    """Return a sentence for each check, by its name: how calls of a sandbox are confined."""
    if kernel_resolves_beneath():
        files = "the kernel keeps paths inside a workspace (openat2)"
    else:
        files = "paths are resolved one component at a time: openat2 is missing"
    limits = {"command limits": _command_limits()} if sandbox == "bwrap" else {}
    return {"files": files, **limits, "programs": _programs(sandbox)}


def workspaces_root(data_dir: Path) -> Path:
    """Return the default directory of the workspaces of a tool-runner with this data directory."""
    return default_root(data_dir, sandbox_identity())


def runners(data_dir: Path, number: int) -> dict[str, Path]:
    """Return the directories of the workspaces of `number` tool-runners, by runner id.

    The runner of an existing directory has the id that is stored there; others get a new one.
    """
    own = load(ToolRunnerServiceSettings).tool_runner
    first = own.workspaces_dir or default_root(data_dir, sandbox_identity(own.sandbox_uid))
    roots = [first, *(first.with_name(f"{first.name}-{place}") for place in range(2, number + 1))]
    return {
        stored_id(root) or (own.runner if root == first and own.runner else new_id("r")): root
        for root in roots
    }


def _programs(sandbox: str) -> str:
    if sandbox == "bwrap":
        found = {name for name in USUAL_PROGRAMS if shutil.which(name, path=ENVIRONMENT["PATH"])}
    else:
        image = load(ToolRunnerServiceSettings).tool_runner.docker.image
        found = _programs_of_image(image or DEFAULT_IMAGE)
    if found is None:
        return "the programs of commands are unknown: their image cannot be started"
    missing = [name for name in USUAL_PROGRAMS if name not in found]
    return f"commands will not find {', '.join(missing)}" if missing else "commands find the usual programs"


def _programs_of_image(image: str) -> set[str] | None:
    """Return the usual programs of an image; None if the engine does not start it."""
    options = ("--rm", "--pull", "never", "--network", "none", "--entrypoint", "bash")
    command = ["docker", "run", *options, image, "-c", f"type -P {' '.join(USUAL_PROGRAMS)}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_IMAGE_TIMEOUT_S)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return {Path(line).name for line in done.stdout.splitlines()} or None


def _command_limits() -> str:
    try:
        return str(examine())
    except NotDelegated as reason:
        return f"rlimits and watchdogs ({reason})"
