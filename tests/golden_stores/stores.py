"""The recorded stores, and how one of them is restored."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.system import System

STORES = Path(__file__).parent
SERVICES = ("gateway", "agent", "tool-runner", "workflows", "model-server")
KEYS = ("approvals.key", "api-keys.json")
"""The files of `keys` that the stored data needs: one signs decisions, the other opens the gateway."""
COMMAND_S = 120


@dataclass(frozen=True)
class Store:
    """The files of one version."""

    version: str

    @property
    def messages(self) -> Path:
        """The folder of the sample messages."""
        return STORES / self.version / "messages"

    @property
    def system(self) -> Path:
        """The folder of the recorded system."""
        return STORES / self.version / "system"

    @property
    def expected(self) -> dict[str, Any]:
        """What the recorded system returned, and the ids of its runs."""
        return json.loads((self.system / "expected.json").read_text(encoding="utf-8"))


def stores() -> list[Store]:
    """Return the stores of all versions."""
    return [Store(folder.name) for folder in sorted(STORES.glob("*.*")) if folder.is_dir()]


def restore(store: Store, system: System, place: Path) -> str:
    """Restore the recorded backup into a system that was not started; return the output of the command."""
    with tarfile.open(store.system / "backup.tar.gz") as packed:
        packed.extractall(place)
    keys = system.data_dir / "keys"
    keys.mkdir(parents=True, mode=0o700)
    for name in KEYS:
        shutil.copy(store.system / name, keys / name)
        (keys / name).chmod(0o600)
    without = [word for name in SERVICES for word in ("--without", name)]
    data = ("--data-dir", str(system.data_dir))
    banksman(system, "up", "--detach", *data, *without)
    try:
        return banksman(system, "restore", str(place / "backup"), "--force", *data)
    finally:
        banksman(system, "down", *data)


def banksman(system: System, *arguments: str) -> str:
    """Run a command beside the system; return its output.

    Raises:
        RuntimeError: The command failed; the message has its output.
    """
    done = subprocess.run(
        [sys.executable, "-m", "banksman.cli", *arguments],
        env=system.variables,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"banksman {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def contains(read: Any, stored: Any) -> bool:
    """Return whether `read` has everything that `stored` has; it may have further fields and items."""
    match stored:
        case dict():
            return isinstance(read, dict) and all(
                key in read and contains(read[key], value) for key, value in stored.items()
            )
        case list():
            return isinstance(read, list) and all(any(contains(one, item) for one in read) for item in stored)
        case _:
            return read == stored
