"""Join the requirements with the tests that cite them, and with the results of the suite.

    tools/requirements.py           write docs/requirements.md
    tools/requirements.py --check   report problems, and change nothing (part of `make lint`)

The docstring of a test cites requirements by number. A complete run of the suite writes the page with its
date, commit and results, and fails if the committed page states other requirements as passed. The page
repeats the texts of the specification verbatim. If `../shared/requirements.md` exists, `--check` compares the
texts, and writing the page updates them.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/requirements.md"
SPECIFIED = ROOT.parent / "shared/requirements.md"
RESULTS = ROOT / ".requirements.json"
NUMBERS = [f"R{number}" for number in range(1, 115)]
PASSED = "passed"
SHOWN_TESTS = 4

CITATION = re.compile(r"\bR(\d{1,3})\b")
ROW = re.compile(r"^\| (R\d+) \| (.*) \|$", re.MULTILINE)
CELL = re.compile(r"(?<!\\) \| ")


@dataclass(frozen=True)
class Requirement:
    """One row of the specification."""

    text: str
    where: str
    """File and line in the specification; empty if it has none."""


@dataclass(frozen=True)
class Run:
    """A complete run of the suite."""

    date: str
    commit: str
    outcomes: Mapping[str, str]
    """The worst outcome by test function."""


NOT_RUN = Run("no date", "none", {})


def main(arguments: list[str]) -> int:
    """Write the page, or only check; return the exit code."""
    if arguments != ["--check"]:
        write(stored_run())
    problems = list(_problems())
    for problem in problems:
        print(f"requirements: {problem}", file=sys.stderr)
    return 1 if problems else 0


def finish(outcomes: Mapping[str, str]) -> list[str]:
    """Write the page of a complete run; return requirements whose result differs on the committed page."""
    run = Run(f"{datetime.now(UTC):%Y-%m-%d}", _commit(), outcomes)
    RESULTS.write_text(json.dumps(vars(run), indent=0), encoding="utf-8")
    committed = passed_requirements(_committed_page())
    write(run)
    return [
        n for n in NUMBERS if (n in committed) != (n in passed_requirements(PAGE.read_text(encoding="utf-8")))
    ]


def write(run: Run) -> None:
    """Write the page."""
    PAGE.write_text(_page(_specified() or _stated(), citations(), run), encoding="utf-8")


def stored_run() -> Run:
    """Return the last complete run of this checkout."""
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return Run(**stored) if "outcomes" in stored else NOT_RUN


def citations() -> dict[str, list[str]]:
    """Map each requirement to the tests that cite it, as `tests/…/file.py::test`."""
    found: dict[str, list[str]] = {number: [] for number in NUMBERS}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, docstring in _tests(ast.parse(file.read_text(encoding="utf-8"))):
            for number in dict.fromkeys(CITATION.findall(docstring)):
                found.setdefault(f"R{number}", []).append(f"{file.relative_to(ROOT)}::{name}")
    return found


def passed_requirements(page: str) -> set[str]:
    """Return the requirements that a page states as passed."""
    return {number for number, cells in _rows(page) if PASSED in cells}


def result(tests: list[str], outcomes: Mapping[str, str]) -> str:
    """Return the result of a requirement: no test may fail, and a scenario must pass.

    Tests that were skipped because the machine lacks a need, and long fault programmes, do not count.
    """
    found = {test: outcomes.get(test, "not run") for test in tests}
    if wrong := {"failed", "error"} & set(found.values()):
        return min(wrong)
    scenarios = (test for test in tests if test.startswith("tests/scenarios/"))
    return PASSED if any(found[test] == PASSED for test in scenarios) else "not run"


def _tests(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield node.name, ast.get_docstring(node) or ""


def _problems() -> Iterator[str]:
    stated, specified, cited = _stated(), _specified(), citations()
    yield from (f"{number} is not on {PAGE.name}" for number in NUMBERS if number not in stated)
    if differing := [
        number for number in NUMBERS if specified and stated.get(number) != specified.get(number)
    ]:
        yield f"{PAGE.name} differs from {SPECIFIED} in {', '.join(differing)}; run `make docs`"
    yield from (f"{number} is cited but does not exist" for number in cited if number not in NUMBERS)
    for number in NUMBERS:
        if not any(test.startswith("tests/scenarios/") for test in cited[number]):
            yield f"no test in tests/scenarios cites {number}"


def _stated() -> dict[str, Requirement]:
    """Return the requirements on the page."""
    rows = _rows(PAGE.read_text(encoding="utf-8"))
    return {number: Requirement(cells[0], cells[1]) for number, cells in rows}


def _specified() -> dict[str, Requirement]:
    """Return the requirements of the specification; none if its file does not exist."""
    if not SPECIFIED.is_file():
        return {}
    rows = _rows(SPECIFIED.read_text(encoding="utf-8"))
    return {number: Requirement(cells[0], "".join(cells[1:2])) for number, cells in rows}


def _rows(text: str) -> list[tuple[str, list[str]]]:
    return [(number, CELL.split(cells)) for number, cells in ROW.findall(text)]


def _page(stated: Mapping[str, Requirement], cited: Mapping[str, list[str]], run: Run) -> str:
    results = {number: result(cited[number], run.outcomes) for number in NUMBERS}
    passed = sum(found == PASSED for found in results.values())
    lines = [
        "# Requirements and their tests",
        "",
        f"**{passed} of {len(NUMBERS)}** passed in the complete run of {run.date}, commit {run.commit}.",
        "",
        "Each complete run of the suite writes this page, with the texts of the specification. A requirement",
        "has passed if no test that cites it failed and a scenario passed. The suite fails if the committed",
        "page states another result. For each, [a mutant](mutants.md) removes it, and a test fails then.",
        "",
        "| # | must hold | where | result | tests |",
        "|---|---|---|---|---|",
    ]
    for number in NUMBERS:
        tests = cited[number]
        names = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in tests[:SHOWN_TESTS])
        more = f"<br>and {len(tests) - SHOWN_TESTS} more" if len(tests) > SHOWN_TESTS else ""
        one = stated[number]
        lines.append(f"| {number} | {one.text} | {one.where} | {results[number]} | {names}{more} |")
    return "\n".join(lines) + "\n"


def _committed_page() -> str:
    """Return the page of the current commit; outside a repository, the page on disk."""
    shown = _git("show", f"HEAD:{PAGE.relative_to(ROOT)}")
    return PAGE.read_text(encoding="utf-8") if shown is None else shown


def _commit() -> str:
    commit = _git("rev-parse", "--short=10", "HEAD")
    if commit is None:
        return "unknown"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{PAGE.relative_to(ROOT)}")
    return commit.strip() + (" with uncommitted changes" if changed else "")


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
