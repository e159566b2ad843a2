from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from banksman.model_server.script import Script, ScriptName
from banksman.model_server.server import serve

_SCRIPTS: TypeAdapter[dict[str, Script]] = TypeAdapter(dict[ScriptName, Script])


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until stopped; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        scripts = _SCRIPTS.validate_json(options.scripts.read_bytes()) if options.scripts else None
        serve(
            options.host,
            options.port,
            recording=options.recording,
            chunk_delay_s=options.chunk_delay_s,
            scripts=scripts,
        )
    except (OSError, ValidationError) as fault:
        sys.stderr.write(f"model server: {fault}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="banksman model-server", description="Serve scripted and demo models."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    parser.add_argument(
        "--recording", action="store_true", help="keep requests and offer the routes of tests"
    )
    parser.add_argument(
        "--chunk-delay-s",
        type=float,
        default=0.015,
        help="seconds before each chunk that the demo model streams (default %(default)s)",
    )
    parser.add_argument("--scripts", type=Path, help="JSON file: an object of scripts by name")
    return parser


if __name__ == "__main__":
    sys.exit(main())
