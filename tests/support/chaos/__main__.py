"""`python -m tests.support.chaos --duration 600 --seed 7`: process faults under traffic, and a verdict."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests.support.chaos.verdict import Chaos, chaos
from tests.support.printing import print_line


def main() -> int:
    """Run one randomized fault test; return 1 if a promise was broken."""
    options = _options()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    directory = options.keep or Path(tempfile.mkdtemp(prefix="banksman-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    print_line(f"seed {seed}, recording {directory / 'history.jsonl'}")
    config = Chaos(
        seed,
        options.duration,
        options.rate,
        options.every,
        frozen_s=tuple(options.frozen),
        servers=options.servers,
    )
    verdict = asyncio.run(chaos(config, directory))
    print_line(str(verdict))
    return 0 if verdict.good else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill and freeze the processes of a system under traffic.")
    parser.add_argument("--duration", type=float, default=600.0, help="seconds (default %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, which is printed")
    parser.add_argument("--rate", type=float, default=5.0, help="runs started a second (default %(default)s)")
    parser.add_argument("--every", type=float, default=2.5, help="seconds between faults (%(default)s)")
    parser.add_argument("--frozen", type=float, nargs=2, default=(45.0, 90.0), help="seconds of a freeze")
    parser.add_argument("--servers", type=int, choices=(1, 3), default=1, help="nats-servers (%(default)s)")
    parser.add_argument("--keep", type=Path, default=None, help="directory for recording, logs and data")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
