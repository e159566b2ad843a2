"""Check that a public class has one name in `shared` and the services, and list file names that are common.

Two classes of one name make a reader open the wrong file. File names repeat where folders have the same parts
(`operations.py`, `feature.py`), so those that exist more than twice are only listed. `PUBLISHED` names the
few classes that OpenAPI publishes under a name that another part uses for its own form of the same concept.

tools/check_names.py          check the classes (part of `make lint`)
tools/check_names.py --files  list the file names that exist more than twice
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("shared", "services")
PARTS = frozenset(
    {"__init__.py", "app.py", "settings.py", "operations.py", "feature.py", "bodies.py", "routes.py"}
)
"""Files that each service or feature has under the same name."""

PUBLISHED = frozenset({"Conversation", "ConversationPage", "EventFrame", "Run"})
"""Classes of OpenAPI. Runs fold logs into a `Conversation` and its `Run`s, and the SDK reads pages, events.
A new name for either form would change the interface or hide that both are the same concept."""


def main(arguments: list[str]) -> int:
    """Print the findings; the exit code is 1 if two classes have one name."""
    modules = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    if arguments == ["--files"]:
        for name, paths in repeated_files(modules).items():
            print(f"{name}: {', '.join(str(path.relative_to(ROOT)) for path in paths)}")
        return 0
    found = repeated_classes(modules)
    for name, paths in found.items():
        print(f"{name} is defined in {' and '.join(str(path.relative_to(ROOT)) for path in paths)}")
    return 1 if found else 0


def repeated_classes(modules: Iterable[Path]) -> Mapping[str, list[Path]]:
    """Return the modules of each public class that more than one module defines."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in modules:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if (
                isinstance(node, ast.ClassDef)
                and not node.name.startswith("_")
                and node.name not in PUBLISHED
            ):
                found[node.name].append(path)
    return {name: paths for name, paths in sorted(found.items()) if len(paths) > 1}


def repeated_files(modules: Iterable[Path]) -> Mapping[str, list[Path]]:
    """Return the paths of each file name that exists more than twice."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in modules:
        if path.name not in PARTS:
            found[path.name].append(path)
    return {name: paths for name, paths in sorted(found.items()) if len(paths) > 2}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
