"""Documents are read as texts with the numbers of their pages."""

from __future__ import annotations

import pytest
from tests.tool_runner.conftest import Runner, only
from tests.tool_runner.tools import documents

from banksman.tool_runner.tools.read_file import MAX_DOCUMENT_BYTES

pytestmark = only("bwrap", "the file tools do not use the sandbox")

TEXT = "The beam carries 12,5 kN in total"
SAMPLES = {
    "a.pdf": documents.pdf(TEXT, "second"),
    "a.docx": documents.docx(TEXT),
    "a.xlsx": documents.xlsx(First=TEXT, Last="second"),
    "a.pptx": documents.pptx(TEXT, "second"),
    "a.odt": documents.odt(TEXT),
    "a.ods": documents.ods(First=TEXT, Last="second"),
    "a.epub": documents.epub(TEXT, "second"),
    "A.RTF": documents.rtf(TEXT),
}


def put(runner: Runner, name: str, data: bytes) -> None:
    (runner.workspace.directory / name).write_bytes(data)


@pytest.mark.parametrize("name", SAMPLES)
async def test_the_text_of_each_format_is_read(runner: Runner, name: str) -> None:
    put(runner, name, SAMPLES[name])
    value = (await runner.call("read_file", path=name)).value
    assert value["success"] is True, value
    assert TEXT in str(value["content"])
    assert ("[page 2]\n\nsecond" in str(value["content"])) == (name in ("a.pdf", "a.pptx"))


@pytest.mark.parametrize("name", ["a.xlsx", "a.ods"])
async def test_the_cells_of_each_sheet_follow_its_name(runner: Runner, name: str) -> None:
    put(runner, name, SAMPLES[name])
    text = str((await runner.call("read_file", path=name)).value["content"])
    places = [text.index(part) for part in ("First", TEXT, "Last", "second")]
    assert places == sorted(places)


async def test_the_chapters_of_a_book_are_read_in_order(runner: Runner) -> None:
    put(runner, "a.epub", SAMPLES["a.epub"])
    text = str((await runner.call("read_file", path="a.epub")).value["content"])
    assert text.index(TEXT) < text.index("second")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", f"<p>{TEXT}</p>\n"),
        ("a.csv", f"name;load\nbeam;{TEXT}\n"),
        ("a.eml", f"From: a@example.org\nSubject: Beams\n\n{TEXT}\n"),
        ("a.md", f"# Beams\n{TEXT}\n"),
    ],
)
async def test_formats_that_are_texts_are_read_as_they_are(runner: Runner, name: str, text: str) -> None:
    put(runner, name, text.encode())
    assert (await runner.call("read_file", path=name)).value["content"] == text


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.odp", documents.odp(TEXT), "office document"),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512), "an older office document"),
        ("a.zip", documents.docx(TEXT), "a ZIP archive"),
    ],
)
async def test_a_document_that_is_not_read_is_named(
    runner: Runner, name: str, data: bytes, kind: str
) -> None:
    put(runner, name, data)
    outcome = await runner.call("read_file", path=name)
    assert outcome.error_kind == "tool_error" and "content" not in outcome.value
    assert kind in str(outcome.value["error"])


async def test_a_long_document_is_read_to_its_end(runner: Runner) -> None:
    put(runner, "long.pdf", documents.pdf(*(f"line {n} {'x' * 80}" for n in range(300))))
    first = (await runner.call("read_file", path="long.pdf")).value
    path, position = str(first["full_output_path"]), len(str(first["content"]).encode())
    text = str(first["content"])
    assert f"byte_offset {position}" in str(first["more"])
    while position is not None:
        part = (await runner.call("read_file", path=path, byte_offset=position)).value
        text += str(part["content"])
        position = part.get("next_byte_offset")
    assert all(f"[page {n + 1}]\n\nline {n} x" in text for n in range(300))


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("broken.pdf", b"%PDF-1.7\n" + b"\0garbage" * 50, "could not be read"),
        ("broken.docx", b"PK\x03\x04" + b"\0garbage" * 50, "could not be read"),
        ("huge.pdf", b"%PDF-1.7\n" + b" " * MAX_DOCUMENT_BYTES, "at most"),
    ],
)
async def test_a_document_that_cannot_be_read_says_why(
    runner: Runner, name: str, data: bytes, reason: str
) -> None:
    put(runner, name, data)
    outcome = await runner.call("read_file", path=name)
    assert outcome.error_kind == "tool_error" and "content" not in outcome.value
    assert reason in str(outcome.value["error"])


async def test_a_document_without_text_says_so(runner: Runner) -> None:
    put(runner, "scan.docx", documents.docx(""))
    value = (await runner.call("read_file", path="scan.docx")).value
    assert (value["content"], value["truncated"]) == ("", False)
    assert "no text" in str(value["note"])


async def test_a_text_with_the_name_of_a_document_is_a_text(runner: Runner) -> None:
    put(runner, "notes.pdf", b"only notes\n")
    assert (await runner.call("read_file", path="notes.pdf")).value["content"] == "only notes\n"
