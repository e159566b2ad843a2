"""Texts as they are: encodings, line ends, names, lines, and edits of a part."""

from __future__ import annotations

import unicodedata

import pytest
from tests.tool_runner.conftest import Runner, only

from banksman.tool_runner.tools.texts import MAX_TRANSCODED_BYTES

pytestmark = only("bwrap", "the file tools do not use the sandbox")

TEXTS = {
    "windows-1252": "Die Größe der Tür beträgt 12 Meter.\n",
    "windows-1250": "Zażółć gęślą jaźń. To jest próba.\n",
    "windows-1251": "Привет, как дела? Это проверка.\n",
    "koi8-r": "Привет, как дела? Это проверка.\n",
    "windows-1253": "Καλημέρα κόσμε, τι κάνεις;\n",
    "shift_jis": "これは日本語のテキストです。\n",
    "gb18030": "这是一个中文文本 用于检测编码。\n",
    "euc-kr": "안녕하세요 세계, 이것은 시험입니다\n",
}
SAMPLES = {
    "report": (b"%PDF-1.7\n\xe2\xe3", "a PDF document"),
    "a.zip": (b"PK\x03\x04\x14\0", "a ZIP archive"),
    "a.db": (b"SQLite format 3\0\x10", "`sqlite3`"),
    "a.out": (b"\x7fELF\x02\x01", "a program"),
    "a.bin": (b"\x01\x02\0\x03", "binary data"),
}


def put(runner: Runner, name: str, data: bytes) -> None:
    path = runner.workspace.directory / name
    path.write_bytes(data)
    path.chmod(0o666)


def stored(runner: Runner, name: str) -> bytes:
    return (runner.workspace.directory / name).read_bytes()


@pytest.mark.parametrize("name", SAMPLES)
async def test_a_file_without_text_is_named_and_not_shown(runner: Runner, name: str) -> None:
    data, kind = SAMPLES[name]
    put(runner, name, data)
    read = await runner.call("read_file", path=name)
    edited = await runner.call("edit_file", path=name, edits=[{"old_text": "a", "new_text": "b"}])
    assert read.is_error and "content" not in read.value
    assert kind in str(read.value["error"]) and f"({len(data)} bytes)" in str(read.value["error"])
    assert kind in str(edited.value["error"])


@pytest.mark.parametrize("encoding", TEXTS)
async def test_another_encoding_is_detected_and_named(runner: Runner, encoding: str) -> None:
    put(runner, "old.txt", TEXTS[encoding].encode(encoding))
    value = (await runner.call("read_file", path="old.txt")).value
    assert (value["content"], value["encoding"]) == (TEXTS[encoding], encoding)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
async def test_a_byte_order_mark_decides_and_is_kept_by_an_edit(runner: Runner, encoding: str) -> None:
    put(runner, "marked.txt", "Größe\r\nzwei\r\n".encode(encoding))
    value = (await runner.call("read_file", path="marked.txt")).value
    edited = await runner.call(
        "edit_file", path="marked.txt", edits=[{"old_text": "zwei\n", "new_text": "2\n"}]
    )
    assert value["content"] == "Größe\r\nzwei\r\n"
    assert edited.value["success"] is True
    assert stored(runner, "marked.txt") == "Größe\r\n2\r\n".encode(encoding)


async def test_a_damaged_text_is_shown_without_loss_and_is_not_edited(runner: Runner) -> None:
    put(runner, "log.txt", "größer und schöner\n".encode() + b"\xff\xfe broken\n")
    value = (await runner.call("read_file", path="log.txt")).value
    edited = await runner.call("edit_file", path="log.txt", edits=[{"old_text": "und", "new_text": "x"}])
    assert value["content"] == "größer und schöner\n\\xff\\xfe broken\n"
    assert "not UTF-8" in str(value["note"])
    assert "not valid" in str(edited.value["error"])


async def test_pages_of_a_detected_encoding_join_to_the_whole_text(runner: Runner) -> None:
    text = "".join(f"Zeile {number} größer\n" for number in range(4_000))
    put(runner, "long.txt", text.encode("windows-1252"))
    pages, position = "", 0
    while position is not None:
        value = (await runner.call("read_file", path="long.txt", byte_offset=position)).value
        pages += str(value["content"])
        position = value.get("next_byte_offset")
    assert pages == text


async def test_a_long_text_in_another_encoding_names_the_remedy(runner: Runner) -> None:
    put(runner, "long.txt", b"Gr\xf6\xdfe der T\xfcr\n" * (MAX_TRANSCODED_BYTES // 12))
    error = str((await runner.call("read_file", path="long.txt")).value["error"])
    assert "windows-1252" in error and "iconv" in error


@pytest.mark.parametrize("line", [1, 2, 3, 70_000, 100_000])
async def test_lines_are_read_by_number(runner: Runner, line: int) -> None:
    put(runner, "numbers.txt", b"".join(b"line %d with some text after it\n" % n for n in range(1, 100_001)))
    value = (await runner.call("read_file", path="numbers.txt", offset=line, limit=1)).value
    assert value["content"] == f"line {line} with some text after it\n"
    assert value["truncated"] is (line < 100_000)


async def test_lines_after_the_end_are_empty(runner: Runner) -> None:
    put(runner, "short.txt", b"one\ntwo\n")
    value = (await runner.call("read_file", path="short.txt", offset=9)).value
    assert (value["content"], value["truncated"], value["total_bytes"]) == ("", False, 8)


async def test_all_edits_apply_in_their_order(runner: Runner) -> None:
    put(runner, "main.py", b"a = 1\nb = 1\nprint(a)\n")
    edits = [
        {"old_text": "a = 1", "new_text": "first = 1"},
        {"old_text": "print(a)", "new_text": "print(first)"},
        {"old_text": "= 1", "new_text": "= 2", "replace_all": True},
    ]
    outcome = await runner.call("edit_file", path="main.py", edits=edits)
    assert stored(runner, "main.py") == b"first = 2\nb = 2\nprint(first)\n"
    assert (outcome.value["replaced"], outcome.changed[0].change) == (4, "modified")


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        ({"old_text": "missing", "new_text": "x"}, "edits[1].old_text is not in the file"),
        ({"old_text": "1", "new_text": "x"}, "edits[1].old_text is in the file 2 times"),
        ({"old_text": "two", "new_text": "€"}, "koi8-r, does not have the character '€'"),
    ],
)
async def test_no_edit_applies_if_one_does_not(runner: Runner, second: dict[str, str], problem: str) -> None:
    before = (TEXTS["koi8-r"] + "1 one 1 two\n").encode("koi8-r")
    put(runner, "notes.txt", before)
    edits = [{"old_text": "one", "new_text": "first"}, second]
    outcome = await runner.call("edit_file", path="notes.txt", edits=edits)
    assert outcome.is_error and problem in str(outcome.value["error"])
    assert stored(runner, "notes.txt") == before


async def test_an_edit_that_would_fill_the_memory_is_refused(runner: Runner) -> None:
    put(runner, "many.txt", b"a" * 1_000_000)
    edits = [{"old_text": "a", "new_text": "b" * 100_000, "replace_all": True}]
    outcome = await runner.call("edit_file", path="many.txt", edits=edits)
    assert "edits[0] would make it longer than" in str(outcome.value["error"])
    assert stored(runner, "many.txt") == b"a" * 1_000_000


async def test_characters_that_only_windows_has_are_read_and_edited(runner: Runner) -> None:
    text = "①これは日本語のテキストです。\n"
    put(runner, "ja.txt", text.encode("cp932"))
    value = (await runner.call("read_file", path="ja.txt")).value
    await runner.call("edit_file", path="ja.txt", edits=[{"old_text": "①", "new_text": "②"}])
    assert (value["content"], value["encoding"]) == (text, "shift_jis")
    assert stored(runner, "ja.txt") == text.replace("①", "②").encode("cp932")


async def test_crlf_is_kept_by_writes_and_edits(runner: Runner) -> None:
    put(runner, "dos.txt", b"one\r\ntwo\r\n")
    await runner.call("edit_file", path="dos.txt", edits=[{"old_text": "one\ntwo", "new_text": "1\n2"}])
    edited = stored(runner, "dos.txt")
    await runner.call("write_file", path="dos.txt", content="a\nb\n")
    put(runner, "mixed.txt", b"one\r\ntwo\n")
    await runner.call("write_file", path="mixed.txt", content="a\nb\n")
    assert (edited, stored(runner, "dos.txt")) == (b"1\r\n2\r\n", b"a\r\nb\r\n")
    assert stored(runner, "mixed.txt") == b"a\nb\n"


@pytest.mark.parametrize("form", ["NFC", "NFD"])
async def test_names_in_both_forms_of_unicode_find_each_other(runner: Runner, form: str) -> None:
    path = "Bücher/Übersicht.txt"
    here = unicodedata.normalize("NFC" if form == "NFC" else "NFD", path)
    other = unicodedata.normalize("NFD" if form == "NFC" else "NFC", path)
    await runner.call("write_file", path=here, content="one")
    read = await runner.call("read_file", path=other)
    written = await runner.call("write_file", path=other, content="two")
    assert read.value["content"] == "one"
    assert written.value["created"] is False
    assert stored(runner, here) == b"two"
