"""Apply the mutants one after the other; the exit code is 1 if one survives."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.mutants import page
from tests.mutants.mutant import BROKEN, Copy, Mutant
from tests.mutants.table import MUTANTS
from tests.support.printing import print_line

CHANGED = "changed"
"""The argument that selects the mutants whose source or test changed since they were killed."""


def main(arguments: list[str]) -> int:
    """Try the mutants of some requirements, by default all."""
    chosen = [mutant for mutant in MUTANTS if _is_chosen(mutant, arguments)]
    commit = page.current_commit()
    alive = 0
    with tempfile.TemporaryDirectory() as directory:
        copy = Copy(Path(directory))
        for mutant in chosen:
            failed = _killed_by(copy, mutant)
            alive += failed is None
            page.record(mutant, None if failed is None else page.kill(mutant, failed, commit))
    print_line(f"{len(chosen) - alive} of {len(chosen)} mutants were killed")
    return 1 if alive else 0


def _is_chosen(mutant: Mutant, arguments: list[str]) -> bool:
    if arguments == [CHANGED]:
        return page.changed(mutant, page.read())
    return not arguments or mutant.requirement in arguments


def _killed_by(copy: Copy, mutant: Mutant) -> str | None:
    """Return the test that fails because of a mutant; None if none is shown to."""
    label = f"{mutant.requirement} {mutant.name}"
    if problem := mutant.problem(copy.root):
        print_line(f"{label}: NOT APPLIED: {problem}")
        return None
    failed = copy.failure(mutant)
    if not failed:
        print_line(f"{label}: SURVIVED {mutant.test}")
        return None
    if failed.startswith(BROKEN):
        print_line(f"{label}: NOT PROVEN: {failed}")
        return None
    # A test that fails without the mutant too proves nothing.
    if broken := copy.unchanged(mutant.test):
        print_line(f"{label}: NOT PROVEN: {broken} fails without it too")
        return None
    print_line(f"{label}: killed by {failed}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
