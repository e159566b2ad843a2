"""W3C Trace Context: the accepted headers, and the headers of requests to other systems."""

from __future__ import annotations

import pytest
import structlog

from banksman.runtime.tracing import HEADER, current, outgoing, traced, valid

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        (GIVEN, GIVEN),
        (f"00-{TRACE}-{SPAN}-ff", GIVEN),
        (f"cc-{TRACE}-{SPAN}-01-of-a-later-version", GIVEN),
        (f"cc-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"cc-{TRACE}-{SPAN}-01.more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (GIVEN.upper(), None),
        (GIVEN[:-1], None),
        (f" {GIVEN}", None),
        ("", None),
        (None, None),
    ],
)
def test_only_a_well_formed_traceparent_is_accepted(given: str | None, accepted: str | None) -> None:
    assert valid(given) == accepted


def test_a_request_to_another_system_is_a_child_in_the_same_trace() -> None:
    with traced(GIVEN):
        first, second = outgoing()[HEADER], outgoing()[HEADER]

    assert valid(first) == first and first[:36] == GIVEN[:36] and first[-3:] == "-01"
    assert len({SPAN, first[36:52], second[36:52]}) == 3
    assert (current(), outgoing()) == (None, {})


@pytest.mark.parametrize("given", [None, "malformed"])
def test_without_a_trace_no_trace_is_sent_or_logged(given: str | None) -> None:
    with traced(given):
        assert (current(), outgoing()) == (None, {})
        assert "trace_id" not in structlog.contextvars.get_contextvars()


def test_log_lines_of_a_trace_have_its_id() -> None:
    with traced(GIVEN):
        assert structlog.contextvars.get_contextvars()["trace_id"] == TRACE
    assert "trace_id" not in structlog.contextvars.get_contextvars()
