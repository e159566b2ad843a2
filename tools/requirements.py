"""Join the requirements with the tests that cite them.

    tools/requirements.py           write docs/requirements.md
    tools/requirements.py --check   say what is wrong, and change nothing (part of `make lint`)

A test cites a requirement by its number in its docstring. Results are those of the last whole run, which
`tests/conftest.py` keeps in `.requirements.json`; without one the page says so.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "tests/scenarios/requirements.toml"
PAGE = ROOT / "docs/requirements.md"
RESULTS = ROOT / ".requirements.json"
NUMBERS = [f"R{number}" for number in range(1, 115)]

CITATION = re.compile(r"\bR(\d{1,3})\b")


def main(arguments: list[str]) -> int:
    """Write or check; returns the exit code."""
    stated = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    cited = citations()
    problems = list(_problems(stated, cited))
    for problem in problems:
        print(f"requirements: {problem}", file=sys.stderr)
    if arguments != ["--check"]:
        PAGE.write_text(_page(stated, cited, _results()), encoding="utf-8")
    return 1 if problems else 0


def citations() -> dict[str, list[str]]:
    """Requirement to the tests that cite it: `tests/…/file.py::test`."""
    found: dict[str, list[str]] = {number: [] for number in NUMBERS}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, docstring in _tests(ast.parse(file.read_text(encoding="utf-8"))):
            for number in dict.fromkeys(CITATION.findall(docstring)):
                found.setdefault(f"R{number}", []).append(f"{file.relative_to(ROOT)}::{name}")
    return found


def _tests(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield node.name, ast.get_docstring(node) or ""


def _problems(stated: dict[str, dict[str, str]], cited: dict[str, list[str]]) -> Iterator[str]:
    known = {number for group in stated.values() for number in group}
    yield from (f"{number} is not in {SOURCE.name}" for number in NUMBERS if number not in known)
    yield from (f"{number} is cited and does not exist" for number in cited if number not in NUMBERS)
    for number in stated["built"]:
        if not any(test.startswith("tests/scenarios/") for test in cited.get(number, [])):
            yield f"{number} is marked built and no test in tests/scenarios cites it"


def _results() -> dict[str, str]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def _page(stated: dict[str, dict[str, str]], cited: dict[str, list[str]], results: dict[str, str]) -> str:
    texts = stated["built"] | stated["planned"]
    lines = [
        "# Requirements and their tests",
        "",
        "Written by `make docs` from what the tests cite; results are those of the last whole run.",
        "",
        "| # | must hold | state | tests |",
        "|---|---|---|---|",
    ]
    for number in NUMBERS:
        tests = cited[number]
        state = _state(number in stated["built"], tests, results)
        names = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in tests[:4])
        more = f"<br>and {len(tests) - 4} more" if len(tests) > 4 else ""
        lines.append(f"| {number} | {texts[number]} | {state} | {names}{more} |")
    return "\n".join(lines) + "\n"


def _state(built: bool, tests: list[str], results: dict[str, str]) -> str:
    if not built:
        return "planned"
    outcomes = {results.get(test, "not run") for test in tests}
    return "passed" if outcomes == {"passed"} else ", ".join(sorted(outcomes - {"passed"}))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
