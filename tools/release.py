"""Make a release from the current commit into `dist/`: packages, SBOM, checksums, images.

    make release                  build and check everything, images included; stop if the tree has changes
    make release ARGS=--dry-run   the same without images, also from a tree with changes

The version is the one of `pyproject.toml`. The wheel, the sdist and the npm package of the client are built
twice, from the files of the commit and with its time, and must be the same byte by byte. Nothing is
uploaded, and no tag is set.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from tools import third_party
from tools.sbom import sbom

ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "services/gateway/banksman/gateway/interfaces/page/static/client/package.json"
CHANGELOG = ROOT / "CHANGELOG.md"
HEADING = re.compile(r"^## (?P<version>\S+)(?: \((?P<date>\d{4}-\d{2}-\d{2})\))?$", re.MULTILINE)
IMAGES = ("nats", "model-server", "gateway", "agent", "tool-runner", "workflows")
DOCUMENT_TESTS = ("tests/project/test_documents.py", "tests/project/test_request_path.py")


class ReleaseError(Exception):
    """The release cannot be made; the text states why."""


@dataclass(frozen=True)
class Commit:
    """The commit that is released."""

    revision: str
    made_at: datetime


def main(arguments: Sequence[str]) -> int:
    """Make the release; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="build no images; the tree may have changes")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="where the files go (default: dist)")
    given = parser.parse_args(arguments)
    try:
        release(given.to, dry_run=given.dry_run)
    except (ReleaseError, LookupError, subprocess.CalledProcessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def release(to: Path, *, dry_run: bool) -> None:
    """Write the files of a release to `to`, which is emptied first, and build its images.

    Raises:
        ReleaseError: The versions differ, the tree has changes, a document is wrong, or the build is not
            reproducible.
        subprocess.CalledProcessError: A build failed.
    """
    version, commit = project_version(), head()
    problems = [*version_problems(version), *([] if dry_run else _tree_problems(version))]
    if problems:
        raise ReleaseError("; ".join(problems))
    _check_documents()
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for name, content in built_twice(commit).items():
        (to / name).write_bytes(content)
    parts = [*third_party.python_packages(), *third_party.page_assets()]
    (to / f"banksman-{version}.cdx.json").write_text(sbom(version, commit.revision, commit.made_at, parts))
    (to / f"banksman-{version}-licences.md").write_text(third_party.page())
    (to / "SHA256SUMS").write_text("".join(_checksums(to)))
    print(f"Banksman {version} of commit {commit.revision[:12]}, in {to}:")
    print("".join(f"  {line}" for line in _checksums(to)), end="")
    _images(version, commit, dry_run=dry_run)


def project_version() -> str:
    """Return the version of `pyproject.toml`, from which all others follow."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def version_problems(version: str) -> list[str]:
    """Return one sentence for each place whose version differs from `version`."""
    client = json.loads(CLIENT.read_text(encoding="utf-8"))["version"]
    newest = HEADING.search(CHANGELOG.read_text(encoding="utf-8"))
    found = {
        "the installed package (run `tools/setup.sh dev`)": metadata.version("banksman"),
        "the client's package.json (run `make docs`)": client,
        "the first section of CHANGELOG.md": newest["version"] if newest else None,
    }
    return [
        f"{place} has version {other}, not {version}" for place, other in found.items() if other != version
    ]


def _tree_problems(version: str) -> Iterator[str]:
    """Yield what keeps the tree from being the released one."""
    if _git("status", "--porcelain"):
        yield "the tree has changes that are not committed"
    newest = HEADING.search(CHANGELOG.read_text(encoding="utf-8"))
    if newest and not newest["date"]:
        yield f"the section {version} of CHANGELOG.md has no date"
    command = ["git", "rev-parse", f"v{version}^{{commit}}"]
    tagged = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if tagged.returncode == 0 and tagged.stdout.strip() != head().revision:
        yield f"the tag v{version} is set on another commit"


def head() -> Commit:
    """Return the current commit."""
    revision, seconds = _git("log", "-1", "--format=%H %ct").split()
    return Commit(revision, datetime.fromtimestamp(int(seconds), UTC))


def _check_documents() -> None:
    """Check generated pages, links and commands.

    Raises:
        ReleaseError: One is wrong; the text has the output of the check.
    """
    for command in (
        ("make", "--no-print-directory", "check-reference"),
        (sys.executable, "-m", "pytest", "-q", "-n", "0", *DOCUMENT_TESTS),
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ReleaseError(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")


def built_twice(commit: Commit) -> dict[str, bytes]:
    """Return the wheel, the sdist and the client's npm package by file name.

    Raises:
        ReleaseError: Two builds in different folders differ.
    """
    first, second = built(commit), built(commit)
    if different := [name for name in first if first[name] != second.get(name)]:
        raise ReleaseError(f"two builds of one commit differ: {', '.join(different)}")
    return first


def built(commit: Commit) -> dict[str, bytes]:
    """Build the files of a commit in a new folder; return them by file name."""
    with tempfile.TemporaryDirectory() as scratch:
        sources, out = Path(scratch) / "sources", Path(scratch) / "out"
        sources.mkdir()
        archive = subprocess.run(
            ["git", "archive", commit.revision], cwd=ROOT, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", str(sources)], input=archive, check=True)
        _pack_client(sources, out)
        command = [Path(sys.executable).with_name("uv"), "build", "--quiet", "--no-config"]
        options = ["--no-build-isolation", "--python", sys.executable, "--wheel", "--sdist", "--out-dir", out]
        epoch = str(int(commit.made_at.timestamp()))
        subprocess.run(
            [*command, *options, sources], env=os.environ | {"SOURCE_DATE_EPOCH": epoch}, check=True
        )
        return {file.name: file.read_bytes() for file in sorted(out.glob("banksman-*"))}


def _pack_client(sources: Path, out: Path) -> None:
    """Pack the client of `sources` with the licence. npm writes no times, so two packages are the same."""
    out.mkdir()
    client = sources / CLIENT.parent.relative_to(ROOT)
    shutil.copy(sources / "LICENSE", client)
    command = ["npm", "pack", "--ignore-scripts", "--silent", "--pack-destination", str(out)]
    subprocess.run(command, cwd=client, check=True, stdout=subprocess.DEVNULL)


def _checksums(folder: Path) -> Iterator[str]:
    """Yield the lines of SHA256SUMS."""
    for file in sorted(folder.iterdir()):
        if file.name != "SHA256SUMS":
            yield f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"


def _images(version: str, commit: Commit, *, dry_run: bool) -> None:
    """Build and label the images, or state that they are missing."""
    command = image_command(version, commit)
    if dry_run or not _has_docker():
        why = "this is a dry run" if dry_run else "there is no Docker engine here"
        print(f"\nNO IMAGES WERE BUILT: {why}. They are part of a release. The command is")
        print(f"  BANKSMAN_TAG={version} {shlex.join(command)}")
        return
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"BANKSMAN_TAG": version})
    for name in IMAGES:
        _check_labels(f"banksman-{name}:{version}", version, commit)


def image_command(version: str, commit: Commit) -> list[str]:
    """Return the command that builds the images of all services with their labels."""
    files = ["-f", "compose.yaml"]
    if os.environ.get("BUILD_CA") or os.environ.get("BUILD_PIP_CONF"):
        files += ["-f", "deploy/docker/compose.build.yaml"]
    labels = {"VERSION": version, "REVISION": commit.revision, "CREATED": commit.made_at.isoformat()}
    arguments = [part for name, value in labels.items() for part in ("--build-arg", f"{name}={value}")]
    return ["docker", "compose", *files, "--profile", "*", "build", *arguments]


def _has_docker() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


def _check_labels(image: str, version: str, commit: Commit) -> None:
    shown = subprocess.run(
        ["docker", "image", "inspect", "--format", "{{json .Config.Labels}}", image],
        check=True,
        capture_output=True,
        text=True,
    )
    labels = json.loads(shown.stdout) or {}
    expected = {"version": version, "revision": commit.revision, "licenses": "Apache-2.0"}
    for name, value in expected.items():
        if labels.get(f"org.opencontainers.image.{name}") != value:
            raise ReleaseError(f"{image} has no label {name}={value}")


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
