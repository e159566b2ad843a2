"""Check that no file names a registry or a local path, or has an open conflict, and that `banksman` stays a
namespace package.

Pins and locks must install from any registry, and a local path does not exist on another machine. `banksman`
is a PEP 420 namespace over several roots: an `__init__.py` directly below one root hides all others.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REGISTRY = re.compile(
    r"(?:\bpypi|pythonhosted|\b(?:registry\.)?npmjs|registry\.yarnpkg|\b(?:deb|security)\.debian|\bcrates)\.(?:org|com|io)\b"
    r"|^\s*--?(?:extra-)?index-url\b|^\s*--find-links\b",
    re.MULTILINE,
)
# A formatter moves the marks of a conflict into lines, where `git diff --check` does not see them.
CONFLICT = re.compile(r"(?:<{7}|>{7}) \S")
SHARED_FOLDERS = {Path(name) for name in ("/", "/tmp", "/home", "/srv", "/opt", "/var/tmp", "/usr/src")}
MAX_BYTES = 5_000_000


def main() -> int:
    """Print one line per finding; the exit code is 1 if there is any."""
    root = Path(__file__).resolve().parent.parent
    findings = list(find(root, files(root)))
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def files(root: Path) -> list[Path]:
    """Return the tracked files, and the untracked files that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout.split(b"\0")
    return [path for name in listed if name and (path := root / name.decode()).is_file()]


def find(root: Path, paths: list[Path]) -> Iterator[str]:
    """Yield findings as `file:line: reason`."""
    rules = [
        ("names a package registry", REGISTRY),
        ("names a path of this machine", _own_paths(root)),
        ("has the mark of a conflict", CONFLICT),
    ]
    for path in paths:
        if path.parts[-2:] == ("banksman", "__init__.py"):
            yield f"{path.relative_to(root)}:1: closes the namespace `banksman` for the other roots"
        if path.stat().st_size > MAX_BYTES or b"\0" in (content := path.read_bytes()):
            continue
        text = content.decode(errors="replace")
        for what, rule in rules:
            if match := rule.search(text):
                line = text.count("\n", 0, match.end()) + 1
                yield f"{path.relative_to(root)}:{line}: {what}: {match[0].strip()}"


def _own_paths(root: Path) -> re.Pattern[str]:
    own = {root, root.parent, Path.home()} - SHARED_FOLDERS
    return re.compile("|".join(re.escape(f"{path}/") for path in sorted(own)))


if __name__ == "__main__":
    sys.exit(main())
