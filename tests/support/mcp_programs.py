"""MCP servers of others, pinned in `tests/tool_runner/mcp/programs`, installed once per state of the pins."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.node import cache_directory, exclusively, packages_of
from tests.support.paths import ROOT
from tests.support.privileged import require
from tests.support.timeouts import WAIT_TIMEOUT_S

PINS = ROOT / "tests/tool_runner/mcp/programs"


def node_packages() -> Path:
    """Return `node_modules` with the servers that are written in JavaScript."""
    return packages_of(PINS)


def python_packages(name: str = "python") -> Path:
    """Return a directory for `PYTHONPATH` with the servers of a file with pins.

    They stand apart, because they need another version of the MCP SDK than Banksman.
    """
    pins = PINS / f"{name}.txt"
    kept = cache_directory() / f"python-{hashlib.sha256(pins.read_bytes()).hexdigest()[:16]}"
    with exclusively(kept.with_suffix(".lock")):
        if not kept.exists():
            partial = kept.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            uv = Path(sys.executable).with_name("uv")
            done = subprocess.run(
                [
                    *(uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", partial),
                    *("--require-hashes", "--no-deps", "--requirement", pins),
                ],
                capture_output=True,
                text=True,
                timeout=4 * WAIT_TIMEOUT_S,
            )
            require("PyPI packages", done.returncode == 0, f"uv pip install: {done.stderr[-300:]}")
            partial.rename(kept)
    return kept


def linked(packages: Path, target: Path) -> None:
    """Make packages appear below `target`, as hard links where that is possible."""

    def link(source: str, copy: str) -> str:
        try:
            os.link(source, copy)
            return copy
        except OSError:
            return shutil.copy2(source, copy)

    shutil.copytree(packages, target, symlinks=True, copy_function=link)
