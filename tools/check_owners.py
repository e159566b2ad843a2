"""Check that each module of `shared/` has at least two users, and name the owner of a module with fewer.

    tools/check_owners.py [ROOT]

`shared/` contains modules that two or more services or clients need. The users of a module are the services,
the CLI and the SDK whose imports reach it, directly or through other modules of `shared/`. Tests, tools,
benchmarks and examples do not count: a module that only they import belongs to them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

SDK = "shared/banksman/sdk"
LIBRARY_INTERNALS = "shared/banksman/library_internals"
EXCEPTIONS = (SDK, LIBRARY_INTERNALS)
"""Packages whose modules need no second user: programs outside this repository import the SDK, and code that
depends on the internals of libraries stands in one place."""
TEST_SUPPORT = "tests/support"

Modules = Mapping[str, Path]


def main(arguments: list[str]) -> int:
    """Print one line per finding; the exit code is 1 if there is any."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1]
    findings = list(find(root))
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def find(root: Path) -> Iterator[str]:
    """Yield findings as `file: reason`."""
    shared = modules(root / "shared")
    imports = {name: set(imported(path, name)) & shared.keys() for name, path in shared.items()}
    users: dict[str, set[str]] = {name: set() for name in shared}
    for owner, name in _direct_uses(root, shared):
        for reached in _reached(name, imports):
            users[reached].add(owner)
    for name, path in shared.items():
        file = path.relative_to(root)
        exempt = path.name == "__init__.py" or any(map(file.is_relative_to, EXCEPTIONS))
        if len(users[name]) < 2 and not exempt:
            yield f"{file}: {_verdict(users[name])}"


def _verdict(users: set[str]) -> str:
    if not users:
        return f"no service and no client imports it; move it to {TEST_SUPPORT} or tools, or remove it"
    (owner,) = users
    return f"only {owner} imports it; move it to {owner}"


def _direct_uses(root: Path, shared: Modules) -> Iterator[tuple[str, str]]:
    """Yield pairs of an owner (the path of its package) and a module of `shared/` that it imports."""
    for package in sorted([*root.glob("services/*/banksman/*/"), *root.glob("cli/banksman/*/"), root / SDK]):
        prefix = f"banksman.{package.name}"
        for path in package.rglob("*.py"):
            for name in imported(path, _name(prefix, package, path)):
                if name in shared and not (name == prefix or name.startswith(f"{prefix}.")):
                    yield str(package.relative_to(root)), name


def _reached(start: str, imports: Mapping[str, Iterable[str]]) -> set[str]:
    reached, open_names = {start}, [start]
    while open_names:
        new = set(imports[open_names.pop()]) - reached
        reached |= new
        open_names.extend(new)
    return reached


def modules(source_root: Path) -> dict[str, Path]:
    """Return the modules below `source_root/banksman` by their dotted names."""
    package = source_root / "banksman"
    return {_name("banksman", package, path): path for path in sorted(package.rglob("*.py"))}


def _name(prefix: str, package: Path, path: Path) -> str:
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join([prefix, *(part for part in parts if part != "__init__")])


def imported(path: Path, name: str) -> Iterator[str]:
    """Yield each dotted name that an import statement of the file may mean: modules and their members."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
