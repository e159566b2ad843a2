"""Update or verify the third-party files of the web page.

`static/vendor/vendor.json` pins each npm package by version and tarball integrity, names the files that are
vendored from it, and records the SHA-256 of every vendored file.

    python tools/vendor_web.py            fetch the pinned packages, verify, write the files
    python tools/vendor_web.py --check    verify the files on disk against the record (no network)
    python tools/vendor_web.py --record   fetch, then record integrity and checksums: after editing a version
"""

from __future__ import annotations

import argparse
import base64
import fnmatch
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict, cast

VENDOR = Path(__file__).parents[1] / "services/gateway/banksman/gateway/interfaces/page/static/vendor"
MANIFEST = VENDOR / "vendor.json"
PACK_TIMEOUT_S = 300

SOURCE_MAP = re.compile(rb"\n?//# sourceMappingURL=\S+\s*$")


class Package(TypedDict):
    """One pinned package; `files` maps the vendored path (or `folder/`) to the path or glob inside it."""

    name: str
    version: str
    license: str
    integrity: str
    files: dict[str, str]


class Manifest(TypedDict):
    """`vendor.json`: the packages, and the SHA-256 (hex) of each vendored file by its path."""

    packages: list[Package]
    sha256: dict[str, str]


class VendorError(Exception):
    """A package or file differs from the manifest."""


def folder(package: Package) -> str:
    """Return the vendored folder of a package: its name without scope mark and slash."""
    return package["name"].lstrip("@").replace("/", "-")


def pack(package: Package, into: Path) -> bytes:
    """Fetch the tarball of a package through npm and return its bytes.

    Raises:
        VendorError: npm failed or produced no tarball.
    """
    spec = f"{package['name']}@{package['version']}"
    npm = shutil.which("npm")
    if npm is None:
        raise VendorError("npm is not installed: it fetches the packages")
    done = subprocess.run(
        [npm, "pack", spec, "--pack-destination", str(into), "--silent"],
        capture_output=True,
        text=True,
        timeout=PACK_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise VendorError(f"npm pack {spec} exited {done.returncode}: {done.stderr.strip()[-400:]}")
    return (into / done.stdout.strip().splitlines()[-1]).read_bytes()


def integrity_of(tarball: bytes) -> str:
    """Return a tarball's SHA-512 in npm's subresource-integrity format."""
    return "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()


def chosen(package: Package, tarball: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (vendored path, content) for each file of a tarball that the manifest names.

    Raises:
        VendorError: a pattern of the manifest matches no file.
    """
    with tarfile.open(tarball) as archive:
        members = {m.name.split("/", 1)[1]: m for m in archive.getmembers() if m.isfile() and "/" in m.name}
        for target, pattern in package["files"].items():
            names = sorted(fnmatch.filter(members, pattern))
            if not names:
                raise VendorError(f"{package['name']}@{package['version']}: no file matches {pattern}")
            for name in names:
                reader = archive.extractfile(members[name])
                assert reader is not None
                path = target + Path(name).name if target.endswith("/") else target
                yield f"{folder(package)}/{path}", SOURCE_MAP.sub(b"\n", reader.read())


def fetch(manifest: Manifest, *, record: bool) -> dict[str, bytes]:
    """Return every vendored file by path, after verifying each tarball against its integrity.

    Raises:
        VendorError: a tarball's integrity differs from the manifest and `record` is false.
    """
    files: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for package in manifest["packages"]:
            tarball = pack(package, Path(scratch))
            integrity = integrity_of(tarball)
            if record:
                package["integrity"] = integrity
            elif integrity != package["integrity"]:
                raise VendorError(
                    f"{package['name']}: integrity {integrity}, expected {package['integrity']}"
                )
            path = Path(scratch) / "current.tgz"
            path.write_bytes(tarball)
            files.update(chosen(package, path))
    return files


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content in hex."""
    return hashlib.sha256(content).hexdigest()


def differences(manifest: Manifest, found: dict[str, bytes]) -> list[str]:
    """Return one sentence per file that is missing, unrecorded or changed."""
    recorded = manifest["sha256"]
    missing = [f"{path} is recorded but missing" for path in sorted(recorded.keys() - found.keys())]
    extra = [f"{path} is not recorded" for path in sorted(found.keys() - recorded.keys())]
    both = sorted(recorded.keys() & found.keys())
    changed = [f"{path} differs from its checksum" for path in both if digest(found[path]) != recorded[path]]
    return missing + extra + changed


def on_disk() -> dict[str, bytes]:
    """Return the vendored files as they are in the tree, by path."""
    paths = (path for path in VENDOR.rglob("*") if path.is_file() and path != MANIFEST)
    return {path.relative_to(VENDOR).as_posix(): path.read_bytes() for path in paths}


def write(files: dict[str, bytes]) -> None:
    """Replace the vendored tree by `files`."""
    for child in VENDOR.iterdir():
        if child.is_dir():
            shutil.rmtree(child)
    for path, content in files.items():
        target = VENDOR / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def run(*, check: bool, record: bool) -> list[str]:
    """Execute the command line and return the problems, one sentence each."""
    manifest = cast(Manifest, json.loads(MANIFEST.read_text(encoding="utf-8")))
    if check:
        return differences(manifest, on_disk())
    files = fetch(manifest, record=record)
    if record:
        manifest["sha256"] = {path: digest(content) for path, content in sorted(files.items())}
        MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    wrong = differences(manifest, files)
    if not wrong:
        write(files)
    return wrong


def main() -> int:
    """Parse the command line; exit 0 when everything matches, 1 when a file does not, 2 on an error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="verify the files on disk, without network")
    parser.add_argument("--record", action="store_true", help="record the fetched files")
    arguments = parser.parse_args()
    try:
        wrong = run(check=arguments.check, record=arguments.record)
    except (VendorError, OSError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"vendor_web: {error}\n")
        return 2
    sys.stderr.writelines(f"vendor_web: {sentence}\n" for sentence in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
