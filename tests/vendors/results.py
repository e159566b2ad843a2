"""Write docs/model-features.json: which features work with which vendor's stand-in.

python -m tests.vendors.results
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tools.model_features import Finding, features

from tests.support.vendors.every import STAND_INS
from tests.vendors.connected import connected

PATH = Path(__file__).parents[2] / "docs/model-features.json"


async def results() -> dict[str, dict[str, Finding]]:
    """Return what works, by vendor and feature."""
    found: dict[str, dict[str, Finding]] = {}
    for stand_in in STAND_INS:
        async with connected(stand_in) as (server, provider):
            found[server.name] = await features(provider, server.model)
    return found


if __name__ == "__main__":
    PATH.write_text(json.dumps(asyncio.run(results()), indent=2, ensure_ascii=False) + "\n", "utf-8")
