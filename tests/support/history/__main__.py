"""`python -m tests.support.history FILE…`: check recordings; exit code 1 if a promise is broken."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.history.checks import breaches
from tests.support.history.folded import Folded
from tests.support.history.records import read
from tests.support.history.summary import summary
from tests.support.printing import print_line

MAX_SHOWN = 10


def main(files: list[str]) -> int:
    """Check each file; return the exit code."""
    broken = False
    for file in files:
        history = Folded(read(Path(file)))
        print_line(summary(history))
        for name, sentences in breaches(history).items():
            broken = True
            print_line(f"BROKEN {name.replace('_', ' ')}: {len(sentences)}")
            for sentence in sentences[:MAX_SHOWN]:
                print_line(f"    {sentence}")
    return int(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
