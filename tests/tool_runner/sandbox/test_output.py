"""Stored and shown parts of any output."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from banksman.tool_runner.sandbox.base import CapturedOutput, Stream
from banksman.tool_runner.tools.toolbox import page

MAX_CHARS = 200
_STREAMS: st.SearchStrategy[Stream] = st.sampled_from(("stdout", "stderr"))
_BYTES = st.one_of(
    st.binary(max_size=900), st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace"))
)
_WRITES = st.lists(st.tuples(_STREAMS, _BYTES), max_size=8)


def captured(writes: list[tuple[Stream, bytes]]) -> CapturedOutput:
    output = CapturedOutput(MAX_CHARS, max_stored_bytes=2000)
    for stream, chunk in writes:
        output.add(stream, chunk)
    return output


def joined(writes: list[tuple[Stream, bytes]], wanted: Stream) -> bytes:
    return b"".join(chunk for stream, chunk in writes if stream == wanted)


@given(_WRITES)
def test_uncut_streams_are_exact_and_fit_the_limit(
    writes: list[tuple[Stream, bytes]],
) -> None:
    output = captured(writes)
    shown = output.shown()
    output.close()
    texts = [joined(writes, stream).decode("utf-8", "replace") for stream in ("stdout", "stderr")]
    assert len(shown.stdout) + len(shown.stderr) <= MAX_CHARS
    assert shown.truncated == (sum(map(len, texts)) > MAX_CHARS)
    if not shown.truncated:
        assert [shown.stdout, shown.stderr] == texts


@given(st.text(min_size=MAX_CHARS * 2, max_size=MAX_CHARS * 6, alphabet="aé€😀"), st.integers(1, 97))
def test_cut_output_has_beginning_and_end_for_any_chunks(text: str, step: int) -> None:
    data = text.encode()
    output = captured([("stdout", data[start : start + step]) for start in range(0, len(data), step)])
    shown = output.shown().stdout
    output.close()
    head, mark, tail = shown.partition("\n[... cut:")
    tail = tail.partition("...]\n")[2]
    assert mark
    assert "\ufffd" not in shown
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) > len(tail) > 50


@given(_WRITES)
def test_whole_output_is_stored_in_order_up_to_its_limit(writes: list[tuple[Stream, bytes]]) -> None:
    output = captured(writes)
    whole = b"".join(chunk for _, chunk in writes)
    assert (output.whole(), output.total_bytes) == (whole[:2000], len(whole))
    output.close()


@given(_BYTES, st.integers(1, 50))
def test_pages_of_any_bytes_join_to_all_of_them(data: bytes, max_chars: int) -> None:
    position = 0
    while position < len(data):
        shown = page(data[position:], max_chars)
        assert 0 < len(shown.text) <= max(max_chars, 4)
        assert shown.text.encode("utf-8")
        position += shown.consumed_bytes
    assert position == len(data)
