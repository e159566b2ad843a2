"""Text files as they are: their encoding, their byte order mark and their line ends."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from pathlib import PurePosixPath

import charset_normalizer
import webencodings

UTF_8 = "utf-8"
MAX_TRANSCODED_BYTES = 4 * 1024 * 1024
"""Maximum bytes of a file that is read in another encoding than UTF-8, which is decoded as a whole."""
SAMPLE_BYTES = 64 * 1024
"""Bytes at the beginning of a file that decide what it is."""
WEB_MARKS = ((codecs.BOM_UTF8, UTF_8), (codecs.BOM_UTF16_LE, "utf-16le"), (codecs.BOM_UTF16_BE, "utf-16be"))
"""The byte order marks of the encodings that the web has."""
_MARKS = ((codecs.BOM_UTF32_LE, "utf-32le"), (codecs.BOM_UTF32_BE, "utf-32be"), *WEB_MARKS)
"""The marks of UTF-32 first: the mark of UTF-16 is the beginning of one of them."""
_WESTERN = "cp1252"
_CANDIDATES = {
    _WESTERN: "windows-1252",
    "cp1250": "windows-1250",
    "cp1251": "windows-1251",
    "cp1253": "windows-1253",
    "cp1254": "windows-1254",
    "koi8_r": "koi8-r",
    "iso8859_2": "iso-8859-2",
    "cp932": "shift_jis",
    "euc_jp": "euc-jp",
    "gb18030": "gb18030",
    "big5": "big5",
    "euc_kr": "euc-kr",
}
"""Encodings in use, by Python's names. With all that Python knows, short texts are taken for rare ones."""
# https://en.wikipedia.org/wiki/List_of_file_signatures
_SIGNATURES = (
    (b"%PDF-", "a PDF document; `pdftotext` in bash can read it"),
    (b"\x89PNG\r\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"PK\x03\x04", "a ZIP archive, or an office document, which is one; `unzip` in bash can read it"),
    (b"\x1f\x8b", "a gzip archive; `zcat or tar` in bash can read it"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\x00", "an SQLite database; `sqlite3` in bash can read it"),
    (b"\xd0\xcf\x11\xe0", "an older office document"),
)
_OFFICE = "application/vnd.openxmlformats-officedocument"
_OPEN = "application/vnd.oasis.opendocument"
_DOCUMENTS = {
    ".pdf": (b"%PDF-", "application/pdf"),
    ".docx": (b"PK", f"{_OFFICE}.wordprocessingml.document"),
    ".xlsx": (b"PK", f"{_OFFICE}.spreadsheetml.sheet"),
    ".pptx": (b"PK", f"{_OFFICE}.presentationml.presentation"),
    ".odt": (b"PK", f"{_OPEN}.text"),
    ".ods": (b"PK", f"{_OPEN}.spreadsheet"),
    ".epub": (b"PK", "application/epub+zip"),
    ".rtf": (b"{\\rtf", "application/rtf"),
}
"""The beginning and the type of the documents whose text can be read, by the suffix of their names."""


_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1", b"avif")


def document_type(name: str, beginning: bytes) -> str | None:
    """Return the media type of a document whose text can be read; None for any other file."""
    start, media_type = _DOCUMENTS.get(PurePosixPath(name).suffix.lower(), (b"", None))
    return media_type if beginning.startswith(start) else None


def is_image(beginning: bytes) -> bool:
    """Return whether a file is an image that can be shown."""
    kind, brand = beginning[:4], beginning[8:12]
    return (
        beginning.startswith((b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8"))
        or (kind == b"RIFF" and brand == b"WEBP")
        or (beginning[4:8] == b"ftyp" and brand in _HEIF_BRANDS)
    )


def binary_kind(beginning: bytes) -> str | None:
    """Return what a file without text is, with the command that can read it; None for a text."""
    for signature, kind in _SIGNATURES:
        if beginning.startswith(signature):
            return kind
    if b"\0" in beginning and not _mark(beginning)[0]:
        return "binary data; `file` or `xxd` in bash can examine it"
    return None


def encoding_of(beginning: bytes) -> tuple[bytes, str]:
    """Return the byte order mark of a text, and Python's name of its encoding; UTF-8 if no other is likely.

    The first 64 KiB decide, so that each part of a file is read in the same encoding. For a text that is not
    UTF-8, this takes a few milliseconds of CPU, whatever the text.
    """
    mark, encoding = _mark(beginning)
    sample = beginning[:SAMPLE_BYTES]
    if mark or _is_utf_8(sample):
        return mark, encoding
    best = charset_normalizer.from_bytes(sample, cp_isolation=list(_CANDIDATES)).best()
    if best is None:
        return mark, UTF_8
    return mark, _WESTERN if _WESTERN in best.could_be_from_charset else best.encoding


def known_encoding(label: str) -> str | None:
    """Return Python's name of an encoding by a label of the web's standard, or by `latin-1`.

    None for an unknown label. See https://encoding.spec.whatwg.org/#names-and-labels
    """
    found = webencodings.lookup(label.lower().replace("latin-", "latin"))
    return None if found is None else found.codec_info.name


def label_of(encoding: str) -> str:
    """Return the label of an encoding by Python's name, which `known_encoding` knows."""
    return _CANDIDATES.get(encoding, encoding)


def _mark(beginning: bytes) -> tuple[bytes, str]:
    return next((one for one in _MARKS if beginning.startswith(one[0])), (b"", UTF_8))


def _is_utf_8(sample: bytes) -> bool:
    """Return whether a text is UTF-8, which may have damaged characters and be cut within one."""
    decoder = codecs.getincrementaldecoder(UTF_8)
    try:
        decoder().decode(sample)
    except UnicodeDecodeError:
        text = decoder("surrogateescape").decode(sample)
    else:
        return True
    damaged = sum("\udc80" <= char <= "\udcff" for char in text)
    return damaged < sum(char > "\x7f" for char in text) - damaged


@dataclass(frozen=True, slots=True)
class TextFile:
    """The text of a whole file, and what is needed to write it back in the same form."""

    text: str
    """Without the byte order mark; line ends as in the file."""
    encoding: str
    mark: bytes

    @classmethod
    def of(cls, data: bytes) -> TextFile | None:
        """Decode a whole file without loss; None if it is not a text."""
        mark, encoding = encoding_of(data)
        try:
            return cls(data[len(mark) :].decode(encoding), encoding, mark)
        except UnicodeDecodeError:
            return None


def ends_with_crlf(text: str) -> bool:
    """Return whether a text has lines, and all of them end with CRLF."""
    lines = text.count("\n")
    return lines > 0 and lines == text.count("\r\n")


def with_crlf(text: str) -> str:
    """Return a text whose lines end with CRLF; one that has CR already is not changed."""
    return text if "\r" in text else text.replace("\n", "\r\n")
