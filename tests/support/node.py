"""Programs for Node in tests. The packages of a lock file are installed once and stay in the tests' cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from tests.support.debian import cache_directory, exclusively
from tests.support.privileged import require
from tests.support.timeouts import WAIT_TIMEOUT_S


def installed(source: Path, folder: Path) -> Path:
    """Copy a folder with a lock file to the new `folder`, and link its packages there; return `folder`."""
    packages = packages_of(source)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("node_modules"))
    (folder / "node_modules").symlink_to(packages)
    return folder


def packages_of(source: Path) -> Path:
    """Return the directory with the packages of a folder's lock file; install them if they are missing."""
    require("node and npm", bool(shutil.which("node") and shutil.which("npm")), "programs for Node")
    lock = source / "package-lock.json"
    kept = cache_directory() / f"node-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    with exclusively(kept.with_suffix(".lock")):
        if not kept.exists():
            _install(source, kept.with_suffix(".partial")).rename(kept)
    return kept / "node_modules"


def _install(source: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(source / name, folder)
    done = subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_TIMEOUT_S,
    )
    require("npm packages", done.returncode == 0, f"npm ci of {source.name}: {done.stderr[-300:]}")
    return folder
