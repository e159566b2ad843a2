"""A server that cuts prompts silently is noticed by the tokens that it counts."""

from __future__ import annotations

import pytest

from banksman.agent.model.checks import cut_notices
from banksman.agent.protocols.base import ModelRequest
from banksman.contracts.messages import Usage, UserMessage


@pytest.mark.parametrize(
    ("tokens", "noticed"),
    [(4_096, True), (2_048, True), (20_000, False), (15_000, False), (12, False), (0, False)],
)
def test_a_count_far_below_the_size_of_the_prompt_is_noticed(tokens: int, noticed: bool) -> None:
    message = UserMessage(message_id="u1", content="word " * 16_000)
    request = ModelRequest("m", "Be brief.", (message,))

    notices = cut_notices(request, Usage(input_tokens=tokens))

    assert [notice.kind for notice in notices] == (["prompt_cut"] if noticed else [])
    assert all(str(tokens) in notice.text for notice in notices)
