"""Characters that do not show are marked: the exact set, and the same one on the page."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from tests.support import privileged
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.contracts.visible import one_line, visible, visible_json

STATIC = Path("services/gateway/banksman/gateway/interfaces/page/static")
SETS = r"""
const { reveal } = await import(process.argv[1]);
const hides = /[\p{Default_Ignorable_Code_Point}\p{Bidi_Control}\p{Cc}\p{Cs}\p{Zl}\p{Zp}\p{Zs}]/u;
const marked = [], required = [];
for (let code = 0; code <= 0x10ffff; code += 1) {
  const text = `a${String.fromCodePoint(code)}b`;
  if (reveal(text).some((piece) => piece.hidden)) marked.push(code);
  if (hides.test(text)) required.push(code);
}
console.log(JSON.stringify({ marked, required }));
"""


@pytest.fixture(scope="module")
def sets() -> dict[str, set[int]]:
    """Return the code points that the page marks, and those that Node's Unicode data does not show."""
    node = shutil.which("node")
    privileged.require("node", node is not None, "the Unicode data of Node")
    resolver = Path("tests/e2e/js/register.mjs").resolve()
    command = [str(node), "--import", str(resolver), "--input-type=module", "-e", SETS]
    done = subprocess.run(
        [*command, str((STATIC / "text.mjs").resolve())],
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT_S,
        check=True,
    )
    return {name: set(codes) for name, codes in json.loads(done.stdout).items()}


def marked() -> set[int]:
    return {code for code in range(sys.maxunicode + 1) if visible(f"a{chr(code)}b") != f"a{chr(code)}b"}


def test_every_code_point_that_does_not_show_is_marked(sets: dict[str, set[int]]) -> None:
    """P15: Default_Ignorable_Code_Point with its unassigned ranges, controls, unusual spaces."""
    assert sets["required"] - marked() == {ord("\n"), ord("\t"), ord(" ")}


def test_page_and_services_mark_the_same_characters(sets: dict[str, set[int]]) -> None:
    """P15."""
    assert sets["marked"] == marked()


def test_letters_marks_and_symbols_stay() -> None:
    """Of all letters, numbers, punctuation and symbols, only invisible ones are marked."""
    shown = {
        code for code in range(0x40000) if unicodedata.category(chr(code))[0] in "LNPS" and chr(code) != " "
    }
    fillers = {0x115F, 0x1160, 0x3164, 0xFFA0, 0x2800, 0x1D159}
    assert shown & marked() == fillers


def test_json_keeps_its_value_and_a_name_stays_on_its_line() -> None:
    """P15."""
    value = {"a\x9b": "\U000e0041\u202e\x1b[2J", "n": [1, "ä"]}
    assert json.loads(visible_json(value)) == value
    assert visible(visible_json(value)) == visible_json(value)
    assert one_line("bash\n? approval \x1b[A") == "bash\\n? approval \\u001b[A"
