"""The reliability page names existing tests, and contains every case."""

from __future__ import annotations

import re

from tests.support.definitions import defined_in
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
CASE = re.compile(r"^\| (A\d\d) \|[^|]*\| (.+) \|$", re.MULTILINE)
CASES = {f"A{number:02d}" for number in range(1, 46)}
OF_OTHER_PAGES = {f"A{number:02d}" for number in (5, 13, 14, 17, 18, 29, 30, 31, 32, 33, 36, 39, 40)}
"""Cases of the gateway and of the tool-runner, which this page may name and need not."""


def test_every_test_on_the_reliability_page_exists() -> None:
    named = NAMED.findall(PAGE)

    missing = [path for path, _ in named if not (ROOT / path).is_file()]
    missing += [f"{path}::{test}" for path, test in named if test and test not in defined_in(path)]

    assert len(named) > 30
    assert missing == []


def test_every_case_has_one_row() -> None:
    cases = [case for case, _ in CASE.findall(PAGE)]

    assert sorted(set(cases)) == sorted(cases)
    assert CASES - OF_OTHER_PAGES <= set(cases) <= CASES


def test_the_reliability_page_names_every_test_in_full() -> None:
    """A test that a row names in another form than `path::test` would not be checked."""
    rows = [text for _, text in CASE.findall(PAGE) if text != "open"]

    assert [text for text in rows if not NAMED.search(text)] == []
