from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from banksman.contracts.wire import JsonObject
from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.limits import MIB, SandboxLimits
from banksman.tool_runner.sandbox.base import ENVIRONMENT
from banksman.tool_runner.sandbox.docker import supervisor
from banksman.tool_runner.sandbox.seccomp import command_filter

INSTALLATION_LABEL = "banksman.installation"
INSTANCE_LABEL = "banksman.instance"
WORKSPACE_LABEL = "banksman.workspace"
SCRATCH_INODES = 16 * 1024
"""Files per directory of scratch space: an empty file needs kernel memory too."""
_SUPERVISOR_BYTES = 64 * MIB
_SUPERVISOR_PROCESSES = 8
_SUPERVISOR = Path(supervisor.__file__).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class ContainerRecipe:
    image: str
    runtime: str | None
    cpus: float
    identity: SandboxIdentity
    limits: SandboxLimits
    installation: str
    """Identifies the directory of the workspaces, which one process at a time serves."""
    instance: str
    """Identifies this process."""

    def config(self, source: Path, workspace: str) -> JsonObject:
        """Return the body of the engine's `POST /containers/create`.

        `source` is the workspace's directory on the engine's host, `workspace` its name in the label.
        """
        return {
            "Image": self.image,
            "Entrypoint": ["python3", "-I", "-S", "-c", _SUPERVISOR, self._rules()],
            "Cmd": [],
            "Env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
            "User": f"{self.identity.uid}:{self.identity.gid}",
            "WorkingDir": supervisor.WORKSPACE,
            "Hostname": "sandbox",
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
            "NetworkDisabled": True,
            "Healthcheck": {"Test": ["NONE"]},
            "StopSignal": "SIGKILL",
            "HostConfig": self._host_config(source),
        }

    def _host_config(self, source: Path) -> JsonObject:
        limits = self.limits
        memory_bytes = limits.memory_bytes + limits.tmp_bytes + limits.home_bytes + limits.shm_bytes
        config: JsonObject = {
            # Also removes the container if the runner is killed.
            "AutoRemove": True,
            "NetworkMode": "none",
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
            "Mounts": [{"Type": "bind", "Source": str(source), "Target": supervisor.WORKSPACE}],
            # Output goes to the runner only; a log driver would fill the host's disk.
            "LogConfig": {"Type": "none"},
        }
        return config if self.runtime is None else {**config, "Runtime": self.runtime}

    def _rules(self) -> str:
        limits = self.limits
        rules = {
            "environment": ENVIRONMENT,
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
