"""The mutants of the requirements fit the sources; `make mutants` tries them, which takes most of an hour."""

from __future__ import annotations

from tests.mutants.table import MUTANTS

NUMBERS = [f"R{number}" for number in range(1, 115)]


def test_every_requirement_has_a_mutant() -> None:
    covered = {mutant.requirement for mutant in MUTANTS}

    assert [number for number in NUMBERS if number not in covered] == []
    assert sorted(covered - set(NUMBERS)) == []


def test_every_mutant_can_be_applied() -> None:
    """A change of a source that a mutant names needs the same change there."""
    problems = {f"{mutant.requirement} {mutant.name}": mutant.problem() for mutant in MUTANTS}

    assert {label: problem for label, problem in problems.items() if problem is not None} == {}
