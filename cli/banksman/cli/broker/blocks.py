"""Message files of nats-server (`msgs/{number}.blk`): finds the records that can be read.

A record is: its length (u32, whose highest bit states that the message has headers), the sequence (u64), the
time (u64), the length of the subject (u16), the subject, the length of the headers (u32, only with headers),
headers and content, and a checksum (8 bytes). All numbers are little-endian. The checksum is HighwayHash-64
of all but the three lengths, under the key SHA-256 of `{stream}-{number}`.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

Checksum = Callable[[bytes], int]

_HEAD = Struct("<IQ8xH")
"""Length with its highest bit, sequence, and length of the subject."""
_WITH_HEADERS = 1 << 31
_MARKS = 3 << 62
"""Bits of a sequence: the message was removed, or the record removes another one."""
_SUBJECT_AT = 22
_CHECKSUM_BYTES = 8
_MIN_RECORD_BYTES = _SUBJECT_AT + _CHECKSUM_BYTES


class Record(NamedTuple):
    """A record with the right checksum."""

    end: int
    """Offset of the byte after the record."""
    seq: int


class Damage(NamedTuple):
    """Bytes of a block that are not a valid record."""

    start: int
    end: int
    subject: str | None
    """Subject of the damaged message, if it can be read; None for several messages."""
    first_seq: int
    last_seq: int | None
    """Sequences of the messages, some of which may have been removed before; None at the end of the block."""

    @property
    def messages(self) -> str:
        """Text that names the messages, such as `messages 3 to 5`."""
        if self.last_seq is None:
            return f"messages from {self.first_seq} on"
        if self.first_seq == self.last_seq:
            return f"message {self.first_seq}"
        return f"messages {self.first_seq} to {self.last_seq}"


def damages(content: bytes, checksum: Checksum) -> Iterator[Damage]:
    """Yield the parts of a block that are not valid records, in order."""
    at, seq = 0, 0
    while at < len(content):
        record = record_at(content, at, checksum)
        if record is None:
            end = _next_record(content, at, checksum)
            behind = record_at(content, end, checksum)
            yield _damage(content, at, end, seq, None if behind is None else behind.seq)
            at = end
        else:
            at, seq = record


def _damage(content: bytes, start: int, end: int, before: int, behind: int | None) -> Damage:
    """Describe damage between the records with the sequences `before` and `behind`; None if none follows."""
    last = None if behind is None else behind - 1
    if end != start + _length(content, start):
        return Damage(start, end, None, before + 1, last)
    seq = int.from_bytes(content[start + 4 : start + 12], "little") & ~_MARKS
    if before < seq and (last is None or seq <= last):
        return Damage(start, end, _subject(content, start), seq, seq)
    return Damage(start, end, _subject(content, start), before + 1, last)


def record_at(content: bytes, at: int, checksum: Checksum) -> Record | None:
    """Return the record at an offset; None if it is incomplete or its checksum differs."""
    if at + _MIN_RECORD_BYTES > len(content):
        return None
    length, seq, subject_bytes = _HEAD.unpack_from(content, at)
    end = at + (length & ~_WITH_HEADERS)
    body_at = at + _SUBJECT_AT + subject_bytes
    data_at = body_at + 4 if length & _WITH_HEADERS else body_at
    if not data_at <= end - _CHECKSUM_BYTES <= len(content) - _CHECKSUM_BYTES:
        return None
    hashed = content[at + 4 : at + 20] + content[at + _SUBJECT_AT : body_at] + content[data_at : end - 8]
    if checksum(hashed) != int.from_bytes(content[end - 8 : end], "little"):
        return None
    return Record(end, seq & ~_MARKS)


def _next_record(content: bytes, at: int, checksum: Checksum) -> int:
    """Return the offset of the next record after a damaged one, or the end of the block.

    The length of the damaged record is used if it leads to a record. Otherwise the records must follow each
    other to the end of the block: a message may contain bytes that look like a record.
    """
    end = at + _length(content, at)
    if end == len(content) or record_at(content, end, checksum) is not None:
        return end
    leads_nowhere: set[int] = set()
    for start in range(at + 1, len(content) - _MIN_RECORD_BYTES + 1):
        here, passed = start, set[int]()
        while here not in leads_nowhere and (record := record_at(content, here, checksum)) is not None:
            passed.add(here)
            here = record.end
        if passed and here == len(content):
            return start
        leads_nowhere |= passed
    return len(content)


def _length(content: bytes, at: int) -> int:
    return int.from_bytes(content[at : at + 4], "little") & ~_WITH_HEADERS


def _subject(content: bytes, at: int) -> str | None:
    length = int.from_bytes(content[at + 20 : at + 22], "little")
    subject = content[at + _SUBJECT_AT : at + _SUBJECT_AT + length]
    printable = len(subject) == length and subject.isascii() and subject.decode("ascii").isprintable()
    return subject.decode("ascii") if subject and printable else None
