"""`python -m banksman.model_server`: the model server without CLI and settings, for tests."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from banksman.contracts.errors import BanksmanError
from banksman.model_server.app import serve
from banksman.model_server.settings import ModelServerSection


def main() -> int:
    parser = argparse.ArgumentParser(prog="banksman model-server", description="Serve model replies.")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free port)")
    parser.add_argument("--recording", action="store_true", help="record requests, serve the test routes")
    parser.add_argument("--scripts", type=Path, help="JSON file with an object that maps names to scripts")
    parser.add_argument("--chunk-delay-s", type=float, default=0.015, help="seconds before each demo chunk")
    options = parser.parse_args()
    try:
        settings = ModelServerSection(port=options.port, chunk_delay_s=options.chunk_delay_s)
        serve(settings, options.scripts, recording=options.recording)
    except (OSError, BanksmanError) as error:
        sys.stderr.write(f"model server: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
