"""`banksman doctor` searches with the operator's providers."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

from tests.cli.conftest import banksman
from tests.support.search_providers import KEY, SearchProviders
from tests.support.web_server import web_server


async def test_doctor_searches_once_and_shows_no_key(tmp_path: Path) -> None:
    providers = SearchProviders()

    async def finding(key: str, port: int) -> dict[str, str]:
        chosen = {"provider": "brave", "url": f"http://127.0.0.1:{port}/res/v1/web/search", "key": key}
        setting = {"BANKSMAN_SEARCH__DEFAULT": json.dumps(chosen)}
        command = partial(banksman, "doctor", "--json", "--data-dir", str(tmp_path), **setting)
        lines = map(json.loads, (await asyncio.to_thread(command)).stdout.splitlines())
        return next(line for line in lines if line["name"] == "search")

    async with web_server(providers.app()) as port:
        works, refused = await finding(KEY, port), await finding("another-key-1234", port)
    assert (works["level"], works["seen"]) == ("ok", "brave returned 1 results")
    assert refused["level"] == "warning" and "422" in refused["seen"]
    assert "another-key-1234" not in json.dumps(refused)
    assert providers.queries == ["banksman"]
