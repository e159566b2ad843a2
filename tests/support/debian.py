"""Root file systems of Debian packages, from the mirror that this machine's apt is set up with."""

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
"""What comes with the named packages.

- `minbase`: a system that runs, with all that is essential and apt.
- `extract`: the files of the packages and of what they depend on, nothing configured.
"""


class MirrorError(RuntimeError):
    """Packages could not be fetched or unpacked; the message ends with what was printed."""


def make_archive(archive: Path, packages: Iterable[str], *, variant: Variant, release: str) -> None:
    """Write a tar archive of a root file system; the file appears when it is whole.

    Raises:
        MirrorError: when the mirror lacks the release or a package, or cannot be reached.
    """
    require("mmdebstrap", shutil.which("mmdebstrap") is not None, "what stands on packages of the mirror")
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
    """The code name of this machine's release: `bookworm`."""
    lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    return fields.get("VERSION_CODENAME", "").strip('"')


def cache_directory() -> Path:
    """Where tests keep between runs what is slow to make: `BANKSMAN_TEST_CACHE`, else the user's cache."""
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
    """Keep other test sessions of this machine out of the block."""
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _sources(release: str) -> list[str]:
    """The distribution's own sources as apt has them here, for `release`, in one-line form."""
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
