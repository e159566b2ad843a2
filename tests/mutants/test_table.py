"""The mutants of the requirements fit the sources; `make mutants` tries them, which takes most of an hour."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.mutants import page
from tests.mutants.table import MUTANTS
from tests.runs.mutants import MUTANTS as PROTOCOL_MUTANTS

NUMBERS = [f"R{number}" for number in range(1, 115)]


def test_every_requirement_has_a_mutant() -> None:
    covered = {mutant.requirement for mutant in MUTANTS}

    assert [number for number in NUMBERS if number not in covered] == []
    assert sorted(covered - set(NUMBERS)) == []


def test_every_mutant_can_be_applied() -> None:
    """A change of a source that a mutant names needs the same change there."""
    problems = {f"{mutant.requirement} {mutant.name}": mutant.problem() for mutant in MUTANTS}

    assert {label: problem for label, problem in problems.items() if problem is not None} == {}


def test_every_mutant_of_the_protocol_can_be_applied() -> None:
    """`python -m tests.runs.mutants` takes minutes; a text that a change of the source moved shows here."""
    assert [mutant.name for mutant in PROTOCOL_MUTANTS if mutant.occurrences != 1] == []


def test_the_page_shows_which_test_killed_each_mutant() -> None:
    assert list(page.problems(MUTANTS, page.read())) == []


def test_a_mutant_that_survives_loses_its_row(tmp_path: Path) -> None:
    first, second = MUTANTS[:2]
    written = tmp_path / "mutants.md"

    for mutant in (second, first):
        page.record(mutant, page.kill(mutant, f"{mutant.test}[a case]", "0123456789"), written)
    both = page.read(written)
    page.record(second, None, written)
    left = page.read(written)

    assert [row.requirement for row in both] == [first.requirement, second.requirement]
    assert list(page.problems((first, second), both)) == []
    assert [row.shows(first) for row in left] == [True]
    assert [problem.split()[0] for problem in page.problems((first, second), left)] == [second.requirement]
    assert list(page.problems((replace(first, name="another"), second), both)) != []
