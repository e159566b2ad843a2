"""Apply the mutants one after the other; the exit code is 1 if one survives."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.mutants.mutant import BROKEN, Copy, Mutant
from tests.mutants.table import MUTANTS


def main(arguments: list[str]) -> int:
    """Try the mutants of some requirements, by default all."""
    chosen = [mutant for mutant in MUTANTS if not arguments or mutant.requirement in arguments]
    with tempfile.TemporaryDirectory() as directory:
        copy = Copy(Path(directory))
        alive = [mutant for mutant in chosen if not _killed(copy, mutant)]
    _print(f"{len(chosen) - len(alive)} of {len(chosen)} mutants were killed")
    return 1 if alive else 0


def _killed(copy: Copy, mutant: Mutant) -> bool:
    label = f"{mutant.requirement} {mutant.name}"
    if problem := mutant.problem(copy.root):
        _print(f"{label}: NOT APPLIED: {problem}")
        return False
    failed = copy.failure(mutant)
    if not failed:
        _print(f"{label}: SURVIVED {mutant.test}")
        return False
    if failed.startswith(BROKEN):
        _print(f"{label}: NOT PROVEN: {failed}")
        return False
    # A test that fails without the mutant too proves nothing.
    if broken := copy.unchanged(mutant.test):
        _print(f"{label}: NOT PROVEN: {broken} fails without it too")
        return False
    _print(f"{label}: killed by {failed}")
    return True


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
