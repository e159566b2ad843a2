"""Check that no service runs an endless loop in a bare task, which ends silently if it raises.

    tools/check_loops.py [ROOT]

An object that stores a task outlives the task. `runtime.background` therefore runs the `while True` of such a
task: it restarts the loop after an exception and reports it. A task in a local variable is awaited by its
function, and a task of a task group by the group.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SUPERVISOR = "shared/banksman/runtime/background.py"


def main(arguments: list[str]) -> int:
    """Print one line per finding; the exit code is 1 if there is any."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1]
    findings = list(find(root))
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def find(root: Path) -> Iterator[str]:
    """Yield findings as `file:line: reason`."""
    for path in sorted([*root.glob("shared/**/*.py"), *root.glob("services/**/*.py")]):
        file = path.relative_to(root)
        if file == Path(SUPERVISOR):
            continue
        module = ast.parse(path.read_text(encoding="utf-8"))
        loops = {
            node.name for node in ast.walk(module) if isinstance(node, ast.AsyncFunctionDef) and _loops(node)
        }
        for line, name in _stored_tasks(module):
            if name in loops:
                yield f"{file}:{line}: {name} loops in a bare task; run it in `bus.background`"


def _loops(function: ast.AsyncFunctionDef) -> bool:
    whiles = [node for node in ast.walk(function) if isinstance(node, ast.While)]
    return any(isinstance(loop.test, ast.Constant) and loop.test.value is True for loop in whiles)


def _stored_tasks(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the lines of assignments that store a task in an object, with the function that it runs."""
    for node in ast.walk(module):
        match node:
            case ast.Assign(
                targets=[ast.Attribute()],
                value=ast.Call(func=ast.Attribute(attr="create_task"), args=[ast.Call(func=function), *_]),
            ):
                yield node.lineno, ast.unparse(function).removeprefix("self.")
            case _:
                pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
