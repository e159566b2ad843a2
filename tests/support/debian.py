"""Root file systems of Debian packages, from the mirror that this machine's apt uses."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tests.support.privileged import require

UNNEEDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
TIMEOUT_S = 600.0

Variant = Literal["minbase", "extract"]
"""What the archive contains besides the named packages.

- `minbase`: a running system, with all essential packages and apt.
- `extract`: the files of the packages and of their dependencies, nothing configured.
"""


class MirrorError(RuntimeError):
    """Packages could not be fetched or unpacked; the message ends with the command's output."""


def make_archive(archive: Path, packages: Iterable[str], *, variant: Variant, release: str) -> None:
    """Write a tar archive of a root file system; the file appears only when it is complete.

    Raises:
        MirrorError: The mirror lacks the release or a package, or is unreachable.
    """
    require("mmdebstrap", shutil.which("mmdebstrap") is not None, "images of packages from the mirror")
    partial = archive.with_suffix(f".{os.getpid()}.tar")
    command = [
        "mmdebstrap",
        *("--quiet", f"--variant={variant}"),
        f"--include={','.join(packages)}",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in UNNEEDED),
        *(release, str(partial), "-"),
    ]
    sources = "\n".join(_sources(release))
    try:
        done = subprocess.run(command, input=sources, capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode != 0:
            raise MirrorError(f"mmdebstrap of {release}: exit {done.returncode}\n{done.stderr[-4000:]}")
        partial.rename(archive)
    finally:
        partial.unlink(missing_ok=True)


def host_release() -> str:
    """Return the code name of this machine's release, such as `bookworm`."""
    lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    return fields.get("VERSION_CODENAME", "").strip('"')


def cache_directory() -> Path:
    """Return the directory for slow build results: `BANKSMAN_TEST_CACHE`, else the user's cache."""
    configured = os.environ.get("BANKSMAN_TEST_CACHE")
    if configured:
        directory = Path(configured)
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        directory = Path(base) / "banksman-tests"
    directory.mkdir(parents=True, exist_ok=True)
    return directory.resolve()


@contextmanager
def exclusively(lock: Path) -> Generator[None]:
    """Exclude other test sessions of this machine while the block runs."""
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _sources(release: str) -> list[str]:
    """Return apt's own sources of the distribution, for `release`, in one-line form."""
    found = _indexed_sources(release)
    if not found:
        subprocess.run(["apt-get", "update", "--quiet"], capture_output=True, timeout=TIMEOUT_S)
        found = _indexed_sources(release)
    return found


def _indexed_sources(release: str) -> list[str]:
    host = host_release()
    listed = subprocess.run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI) $(RELEASE) $(COMPONENT)",
            "Created-By: Packages",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    ).stdout
    own = {suite: suite.replace(host, release, 1) for suite in (host, f"{host}-updates", f"{host}-security")}
    entries = (line.split() for line in listed.splitlines())
    return sorted(
        {f"deb {uri} {own[suite]} main" for uri, suite, part in entries if suite in own and part == "main"}
    )
