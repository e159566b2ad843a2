"""The third-party parts of a release: the pinned Python packages and the vendored files of the page.

python -m tools.third_party           write docs/licences.md
python -m tools.third_party --check   check that the page is current (part of `make lint`)
"""

from __future__ import annotations

import base64
import json
import re
import sys
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Literal

from packaging.markers import Marker
from packaging.utils import canonicalize_name
from tools.generated import ROOT, write_or_check

PAGE = ROOT / "docs/licences.md"
PINS = ROOT / "requirements/local.txt"
"""The packages of all services and of the command line."""
VENDORED = ROOT / "services/gateway/banksman/gateway/interfaces/page/static/vendor/vendor.json"

PIN = re.compile(
    r"^(?P<name>[a-z0-9-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\\n]+))?(?P<rest>.*\n(?:[ ].*\n)*)",
    re.MULTILINE,
)
USER = re.compile(r"^ {4}#(?: via | {3})(?P<name>[a-z][a-z0-9-]*)(?: \(pyproject\.toml\))?$", re.MULTILINE)
PLATFORM = {
    "python_version": "3.11",
    "python_full_version": "3.11.0",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
}
"""The page lists what Linux installs, whatever machine writes it."""

SPDX = {
    "Apache 2 License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""The identifiers of licences that packages name in words."""
IDENTIFIER = re.compile(r"[A-Z][A-Za-z0-9.+-]+(?: (?:OR|AND) [A-Z][A-Za-z0-9.+-]+)*")
READ_FROM_ITS_TEXT = {"cronsim": "BSD-3-Clause", "webencodings": "BSD-3-Clause"}
"""Packages whose metadata does not state which of the BSD licences applies."""

INTRODUCTION = """# Licences

Banksman has the licence [Apache-2.0](../LICENSE). It uses the packages below, each under its own licence.
The text of a licence is part of its package: below `site-packages` in an installation and in an image, and
beside the vendored files of the page. Images also contain Debian packages, whose licences are in
`/usr/share/doc/*/copyright`.

`make docs` writes this page from the pins and from the metadata of the packages. `make release` writes the
same list as an SBOM in the format CycloneDX.
"""


@dataclass(frozen=True)
class Part:
    """A third-party package."""

    name: str
    version: str
    licence: str
    """An SPDX expression."""
    source: Literal["pypi", "npm"]
    used_by: tuple[str, ...] = ("banksman",)
    """The names of the packages that require it."""
    sha512: str | None = None
    """The digest of its archive in hex; None for a Python package, which has one archive per platform."""


def main(arguments: list[str]) -> int:
    """Write or check the page; return the exit code."""
    return write_or_check({PAGE: page()}, arguments)


def page() -> str:
    """Return the text of docs/licences.md."""
    tables = (("Python packages", python_packages()), ("Vendored files of the page", page_assets()))
    return INTRODUCTION + "".join(f"\n## {title}\n\n{_table(parts)}" for title, parts in tables)


def _table(parts: list[Part]) -> str:
    rows = [f"| {part.name} | {part.version} | {part.licence} |\n" for part in parts]
    return "".join(["| package | version | licence |\n", "|---|---|---|\n", *rows])


def python_packages() -> list[Part]:
    """Return the pinned packages that Linux installs, by name.

    Raises:
        LookupError: A package is not installed in its pinned version, or does not state a licence.
    """
    pins = PIN.finditer(PINS.read_text(encoding="utf-8"))
    return [_python_package(pin) for pin in pins if _is_for_linux(pin["marker"])]


def _is_for_linux(marker: str | None) -> bool:
    return marker is None or Marker(marker).evaluate(PLATFORM)


def _python_package(pin: re.Match[str]) -> Part:
    name, version = pin["name"], pin["version"]
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        raise LookupError(f"{name} is not installed; run `tools/setup.sh dev`") from None
    if installed.version != version:
        raise LookupError(f"{name} is pinned to {version}, but {installed.version} is installed")
    users = dict.fromkeys(user["name"] for user in USER.finditer(pin["rest"]))
    return Part(name, version, licence_of(installed), "pypi", tuple(users))


def licence_of(installed: Distribution) -> str:
    """Return the SPDX expression of the licence that an installed package states.

    Raises:
        LookupError: The package states no licence, or one without a known identifier.
    """
    stated = installed.metadata
    for expression in stated.get_all("License-Expression") or ():
        return expression
    name = canonicalize_name(stated["Name"])
    if name in READ_FROM_ITS_TEXT:
        return READ_FROM_ITS_TEXT[name]
    classifiers = stated.get_all("Classifier") or []
    words = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License :: ")]
    known = [SPDX[word] for word in words if word in SPDX]
    short = " ".join(stated.get_all("License") or ()).strip()
    if known and len(known) == len(words):
        return " OR ".join(sorted(known))
    if short in SPDX or IDENTIFIER.fullmatch(short):
        return SPDX.get(short, short)
    raise LookupError(f"{name} states no licence that tools/third_party.py knows: {words}, {short!r}")


def page_assets() -> list[Part]:
    """Return the npm packages whose files the page contains."""
    packages = json.loads(VENDORED.read_text(encoding="utf-8"))["packages"]
    return sorted(
        (
            Part(one["name"], one["version"], one["license"], "npm", sha512=_hex(one["integrity"]))
            for one in packages
        ),
        key=lambda part: part.name,
    )


def _hex(integrity: str) -> str:
    """Return the digest of npm's format `sha512-BASE64` in hex."""
    return base64.b64decode(integrity.removeprefix("sha512-")).hex()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
