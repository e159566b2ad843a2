from __future__ import annotations

import json

import pytest
from tools.feature_table import PAGE, page
from tools.model_features import features

from tests.support.vendors.base import StandIn
from tests.vendors.connected import connected
from tests.vendors.results import PATH


async def test_the_stored_results_are_those_of_the_stand_in(stand_in: type[StandIn]) -> None:
    """`python -m tests.vendors.results` writes them."""
    async with connected(stand_in) as (server, provider):
        found = await features(provider, server.model)

    assert found == json.loads(PATH.read_text(encoding="utf-8"))[stand_in.name]


def test_the_table_is_that_of_the_stored_results() -> None:
    """`python -m tools.feature_table` writes it."""
    assert page() == PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("vendor", json.loads(PATH.read_text(encoding="utf-8")))
def test_no_feature_fails(vendor: str) -> None:
    found = json.loads(PATH.read_text(encoding="utf-8"))[vendor]

    assert {name: finding for name, finding in found.items() if finding.startswith("no:")} == {}
