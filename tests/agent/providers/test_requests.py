"""Golden requests for each history and vendor, compared as exact JSON."""

from __future__ import annotations

import pytest
from tests.agent.providers.conftest import Vendor
from tests.agent.providers.golden import golden
from tests.agent.providers.histories import histories
from tests.support.deltas import Shown
from tests.support.scripted_models import ScriptedReply

from banksman.model_server.anthropic_reply import signature_of

SIGNATURE = signature_of("Two at once.")


@pytest.mark.parametrize("name", histories("", ""))
async def test_history_is_sent_as_the_golden_request(api: Vendor, name: str) -> None:
    """R57, R62, R77, R79, R80, R85, R87, R92, R95, R113."""
    model = api.play(ScriptedReply(text="Fine."))

    request = histories(api.name, SIGNATURE)[name].request(model)
    await api.provider.complete(request, deltas=Shown(), deadline_s=30)

    assert api.violations() == []
    assert api.requests() == golden(f"requests/{api.name}/{name.replace(' ', '-')}", api.requests())
