"""`docs/mutants.md`: which mutant of each requirement was killed by which test, at which commit.

`make mutants` writes a row for each mutant that it kills, and removes the row of one that survives. The page
keeps the rows of earlier runs, so some mutants can be tried again.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.support.paths import ROOT

PAGE = ROOT / "docs/mutants.md"
ROW = re.compile(r"^\| (R\d+) \| (.+) \| `(.+)` \| `(.+)` \| (.+), (.+) \|$", re.MULTILINE)
UNCOMMITTED = " with uncommitted changes"
HEAD = """\
# Requirements and the mutants that their tests kill

{mutants} mutants of {requirements} requirements were killed.

A mutant is one small change of the sources that removes what a requirement demands. With it, its test must
fail; without it, the test must pass. `make mutants` tries both in a copy of the tree, one mutant after the
other, and writes the row of each mutant that a test notices. `make test` fails if a mutant has no row or a
requirement no mutant. The texts are on [another page](requirements.md).

| # | what the mutant changes | in | failed | when |
|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Kill:
    """One row: a mutant, and the test that failed because of it."""

    requirement: str
    name: str
    file: str
    """The source that was changed, relative to the root."""
    test: str
    """Node id of the first test that failed, relative to `tests`, without parameters."""
    date: str
    commit: str
    """The commit of the sources; with `UNCOMMITTED` appended if others had changed."""

    def shows(self, mutant: Mutant) -> bool:
        """Return whether the row is of this mutant, and of one of the tests that must notice it."""
        function = f"tests/{self.test}"
        named = any(function == test or function.startswith(f"{test}::") for test in mutant.test.split())
        mine = (mutant.requirement, mutant.name, mutant.file)
        return named and (self.requirement, self.name, self.file) == mine


def kill(mutant: Mutant, failed: str, commit: str) -> Kill:
    """Return the row of a mutant whose test `failed` now."""
    test = failed.removeprefix("tests/").partition("[")[0]
    return Kill(mutant.requirement, mutant.name, mutant.file, test, f"{datetime.now(UTC):%Y-%m-%d}", commit)


def read(page: Path = PAGE) -> list[Kill]:
    """Return the rows of the page."""
    return [Kill(*cells) for cells in ROW.findall(page.read_text(encoding="utf-8"))] if page.exists() else []


def record(mutant: Mutant, found: Kill | None, page: Path = PAGE) -> None:
    """Replace the row of a mutant; without one, remove it."""
    others = [row for row in read(page) if (row.requirement, row.name) != (mutant.requirement, mutant.name)]
    rows = others if found is None else [*others, found]
    rows.sort(key=lambda row: int(row.requirement[1:]))
    page.write_text(_text(rows), encoding="utf-8")


def problems(mutants: Sequence[Mutant], rows: Sequence[Kill]) -> Iterator[str]:
    """Yield each mutant that no row shows, and each row that shows no mutant."""
    for mutant in mutants:
        if not any(row.shows(mutant) for row in rows):
            command = f"make mutants ARGS={mutant.requirement}"
            yield f"{mutant.requirement} {mutant.name}: not killed; run `{command}`"
    for row in rows:
        if not any(row.shows(mutant) for mutant in mutants):
            yield f"{row.requirement} {row.name}: no such mutant"


def changed(mutant: Mutant, rows: Sequence[Kill]) -> bool:
    """Return whether the source or the tests of a mutant differ from those of its row, or it has none."""
    commits = [row.commit.removesuffix(UNCOMMITTED) for row in rows if row.shows(mutant)]
    files = [mutant.file, *(test.partition("::")[0] for test in mutant.test.split())]
    return not commits or _git("diff", "--quiet", commits[0], "--", *files).returncode != 0


def current_commit() -> str:
    """Return the commit of the tree, and whether files other than the page have changed since."""
    head = _git("rev-parse", "--short=10", "HEAD")
    state = _git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{PAGE.relative_to(ROOT)}")
    return (head.stdout.strip() or "unknown") + (UNCOMMITTED if state.stdout else "")


def _text(rows: Sequence[Kill]) -> str:
    shown = (
        f"| {row.requirement} | {row.name} | `{row.file}` | `{row.test}` | {row.date}, {row.commit} |\n"
        for row in rows
    )
    return HEAD.format(mutants=len(rows), requirements=len({row.requirement for row in rows})) + "".join(
        shown
    )


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
