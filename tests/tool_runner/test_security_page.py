"""The security page names only existing tests and covers every attack case."""

from __future__ import annotations

import re

from tests.support.definitions import defined_in
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
CASE = re.compile(r"^\| (A\d+) \|[^|]*\|(.*)\|$", re.MULTILINE)
CASES = {f"A{number}" for number in (*range(1, 26), *range(29, 33))}


def test_every_test_on_the_security_page_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 60
    assert [f"{path}::{test}" for path, test in named if test not in defined_in(path)] == []


def test_every_attack_case_has_one_row_with_a_test() -> None:
    rows = CASE.findall(PAGE)
    assert sorted(case for case, _ in rows) == sorted(CASES)
    assert [case for case, tests in rows if not NAMED.search(tests)] == []
