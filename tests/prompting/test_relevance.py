"""If not all tools fit, the tools most relevant to the conversation are offered (R26, R33)."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from banksman.contracts.messages import (
    AssistantMessage,
    FilePart,
    Message,
    TextPart,
    ToolMessage,
    UserMessage,
)
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult
from banksman.contracts.workspace_tools import WORKSPACE_TOOLS
from banksman.prompting.enhance import Needs, enhance, needs_of, words_of

MESSAGE_ID = "m-requested"


def tool(name: str, description: str = "Does things.", **fields: Any) -> ToolDefinition:
    return ToolDefinition(name=name, description=description, server="s1", **fields)


TOOLS = (
    tool("create_invoice", "Bills a customer.", category="billing"),
    tool("refund_payment", "Gives money back.", category="billing"),
    tool("book_flight", "Reserves a seat on a plane.", category="travel"),
    tool("find_hotel", "Finds a bed for the night.", category="travel"),
    tool("search_tickets", "Looks through what customers reported.", category="support", priority=50),
    *WORKSPACE_TOOLS,
)


def user_message(text: str, message_id: str = MESSAGE_ID) -> UserMessage:
    return UserMessage(message_id=message_id, content=text)


def called(name: str) -> tuple[Message, ...]:
    call = ToolCall(id=f"k-{name}", name=name, arguments={})
    return (
        AssistantMessage(message_id=f"m-{name}", content=None, calls=(call,)),
        ToolMessage(name=name, result=ToolResult(tool_call_id=call.id, content={"success": True})),
    )


FOUR = {"bash", "read_file", "write_file", "web_fetch"}
"""The tools of R63, which every run is offered."""


def offered(*history: Message, others: int = 2, always: tuple[str, ...] = ()) -> list[str]:
    """Return the tools that are offered beside the four."""
    needs = needs_of(history, MESSAGE_ID, always)
    kept = enhance("", TOOLS, "native", max_tools=len(FOUR) + others, needs=needs).tools
    assert {one.name for one in kept} >= FOUR
    return [one.name for one in kept if one.name not in FOUR]


def test_all_tools_are_offered_if_they_fit() -> None:
    """R56: no tool is omitted, and the order of the tools is unchanged."""
    kept = enhance("", TOOLS, "native", max_tools=len(TOOLS)).tools
    assert [one.name for one in kept] == [one.name for one in TOOLS]


@pytest.mark.parametrize("text", ["use gizmo_05", "Please run Gizmo_05.", "the gizmo 05", "ls, and gizmo_05"])
def test_the_user_names_one_of_many_similar_tools(text: str) -> None:
    """R33: short names and numbers count too."""
    many = (*(tool(f"gizmo_{number:02d}") for number in range(80)), tool("ls"), *WORKSPACE_TOOLS)
    needs = needs_of((user_message(text),), MESSAGE_ID)

    names = {one.name for one in enhance("", many, "native", max_tools=len(FOUR) + 2, needs=needs).tools}

    assert names >= {"gizmo_05", *FOUR}
    assert ("ls" in names) == text.startswith("ls")


def test_the_user_names_a_tool_of_an_mcp_server_behind_a_long_text() -> None:
    """R33: no user types the id of the server, and the instruction follows what was pasted."""
    many = (*(tool(f"stock__gizmo_{number:02d}") for number in range(80)), *WORKSPACE_TOOLS)
    pasted = "line of a log\n" * 10_000
    needs = needs_of((user_message(f"{pasted}Now run gizmo_05."),), MESSAGE_ID)

    names = {one.name for one in enhance("", many, "native", max_tools=len(FOUR) + 2, needs=needs).tools}

    assert names >= {"stock__gizmo_05", *FOUR}


def test_the_four_workspace_tools_are_never_displaced() -> None:
    """R63: 75 other tools, of which one was called, and a budget without room."""
    many = (*(tool(f"other_{number}", priority=99) for number in range(75)), *WORKSPACE_TOOLS)
    needs = needs_of((user_message("other_7"), *called("other_7")), MESSAGE_ID)

    for most, budget in ((64, 8_000), (1, 8_000), (64, 1)):
        enhanced = enhance("", many, "native", max_tools=most, budget_tokens=budget, needs=needs)
        assert {one.name for one in enhanced.tools} >= FOUR


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ((user_message("Please refund the payment, then find a hotel."),), {"refund_payment", "find_hotel"}),
        ((user_message("Something about billing"),), {"create_invoice", "refund_payment"}),
        ((user_message("I need a bed and a seat on a plane"),), {"book_flight", "find_hotel"}),
        ((user_message("hm"),), {"search_tickets", "edit_file"}),
        (
            (user_message("Book it.", "m0"), *called("book_flight"), user_message("Thanks. And now?")),
            {"book_flight", "find_hotel"},
        ),
        (
            (UserMessage(message_id=MESSAGE_ID, content=(TextPart(text="Look"), FilePart(path="a.csv"))),),
            {"edit_file", "search_code"},
        ),
    ],
    ids=["named", "category", "words", "priority", "category of an earlier run", "files"],
)
def test_relevance_to_the_conversation_selects_the_tools(
    history: tuple[Message, ...], expected: set[str]
) -> None:
    assert set(offered(*history)) == expected


def test_tool_in_the_history_is_never_dropped() -> None:
    """R33: neither the number of tools nor the budget drops it, because the vendor must know each called
    tool."""
    history = (
        user_message("Create an invoice, refund a payment"),
        *called("find_hotel"),
        *called("book_flight"),
    )
    assert set(offered(*history, others=1)) == {"find_hotel", "book_flight"}

    needs = needs_of(history, MESSAGE_ID)
    tight = enhance("Base.", TOOLS, "json_text", budget_tokens=1, needs=needs)
    assert {kept.name for kept in tight.tools} == {"find_hotel", "book_flight", *FOUR}
    assert "**find_hotel**" in tight.text and "find_hotel" not in tight.dropped


def test_always_offered_tool_ranks_above_a_tool_that_the_user_names() -> None:
    chosen = offered(user_message("refund the payment and book a flight"), always=("search_tickets",))
    assert chosen == ["refund_payment", "search_tickets"]


def test_offered_tools_do_not_change_during_a_run() -> None:
    """Vendors cache a prefix that starts with the tools."""
    history: tuple[Message, ...] = (user_message("Invoice the trip to Rome"),)
    first = offered(*history, others=4)
    for name in first:
        history = (*history, *called(name))
        assert offered(*history, others=4) == first


def test_words_of_a_correction_do_not_count_as_words_of_the_user() -> None:
    reply = AssistantMessage(message_id="m-bad", content="{", protocol="json_text")
    correction = user_message("Use find_hotel or book_flight properly.", "m-bad")
    assert offered(user_message("refund payment"), reply, correction, others=1) == ["refund_payment"]


def test_dropped_tools_are_named_least_relevant_first() -> None:
    needs = needs_of((user_message("find a hotel"),), MESSAGE_ID)
    dropped = enhance("", TOOLS, "native", max_tools=7, needs=needs).dropped
    assert dropped[0] == "book_flight" or dropped[0] in {"create_invoice", "refund_payment"}
    assert "find_hotel" not in dropped and len(dropped) == len(TOOLS) - 7


def test_words_are_compared_in_the_singular_without_common_words() -> None:
    assert words_of("Please use the Invoices and categories") == {"please", "invoice", "category"} - {
        "please"
    }


NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=8)


@given(
    st.lists(NAMES, unique=True, max_size=30),
    st.sets(NAMES, max_size=5),
    st.integers(1, 10),
    st.integers(0, 2_000),
)
def test_selection_is_deterministic_and_keeps_used_tools(
    names: list[str], words: set[str], max_tools: int, budget: int
) -> None:
    tools = [tool(name, f"About {name}.") for name in names]
    used = frozenset(names[:3])
    needs = Needs(used=used, words=frozenset(words))

    one = enhance("Base.", tools, "native", max_tools=max_tools, budget_tokens=budget, needs=needs)
    again = enhance("Base.", tools, "native", max_tools=max_tools, budget_tokens=budget, needs=needs)

    kept = {tool.name for tool in one.tools}
    assert one == again
    assert used & set(names) <= kept
    assert len(kept) <= max(max_tools, len(used))
    assert kept | set(one.dropped) == set(names) and not kept & set(one.dropped)
