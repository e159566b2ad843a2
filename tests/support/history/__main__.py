"""`python -m tests.support.history FILE…`: check recordings; exit code 1 if a promise is broken."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.history.checks import breaches
from tests.support.history.folded import Folded
from tests.support.history.records import read
from tests.support.history.summary import summary

MAX_SHOWN = 10


def main(files: list[str]) -> int:
    """Check each file; return the exit code."""
    broken = False
    for file in files:
        history = Folded(read(Path(file)))
        _print(summary(history))
        for name, sentences in breaches(history).items():
            broken = True
            _print(f"BROKEN {name.replace('_', ' ')}: {len(sentences)}")
            for sentence in sentences[:MAX_SHOWN]:
                _print(f"    {sentence}")
    return int(broken)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
