"""Each format whose text is read has a sample."""

from __future__ import annotations

from tests.tool_runner.tools.test_documents import SAMPLES

from banksman.tool_runner.tools.texts import document_type

SUFFIXES = "pdf doc docx xls xlsx ppt pptx odt ods odp odg epub rtf html csv eml msg mobi pages key numbers"
BEGINNINGS = (b"%PDF-1.7", b"PK\x03\x04", b"{\\rtf1", b"\xd0\xcf\x11\xe0", b"text")


def test_each_format_that_is_converted_has_a_sample() -> None:
    converted = {
        suffix for suffix in SUFFIXES.split() if any(document_type(f"a.{suffix}", one) for one in BEGINNINGS)
    }
    assert converted == {name.rpartition(".")[2].lower() for name in SAMPLES}
