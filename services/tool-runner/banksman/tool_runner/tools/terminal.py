"""Reduces the output of a program to what a terminal would show at the end."""

from __future__ import annotations

import re

_MAX_COLUMN = 1_000
"""Maximum column that a sequence moves to; text can be longer."""
_MAX_STYLE_CHARS = 64
_RESET = "\x1b[0m"
# https://www.ecma-international.org/publications-and-standards/standards/ecma-48/ (5.4, 5.6)
_PIECE = re.compile(
    r"\x1b\[(?P<parameters>[0-?]{0,64})[ -/]{0,4}(?P<final>[@-~])"
    r"|\x1b[\]PX^_][^\x07\x1b\n]*+(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]{0,4}[0-~]?"
    r"|(?P<move>[\r\b])"
    r"|(?P<text>[^\x1b\r\b]+)"
)


def last_state(output: str) -> str:
    """Return the last state of each line: what a progress bar has overwritten is left out.

    Colours stay as sequences, all other control sequences are applied or left out. Sequences that move to
    other lines have no effect. Takes time in proportion to the text.
    """
    if not any(control in output for control in "\x1b\r\b"):
        return output
    return "\n".join(_Line().after(line) for line in output.replace("\r\n", "\n").split("\n"))


class _Line:
    """The cells of one line, each with the sequences of its colours, and the column of the cursor."""

    def __init__(self) -> None:
        self._cells: list[tuple[str, str]] = []
        self._column = 0
        self._style = ""

    def after(self, written: str) -> str:
        for piece in _PIECE.finditer(written):
            if text := piece["text"]:
                self._write(text)
            elif move := piece["move"]:
                self._column = 0 if move == "\r" else max(0, self._column - 1)
            elif final := piece["final"]:
                self._control(final, piece["parameters"], piece[0])
        return self._shown()

    def _write(self, text: str) -> None:
        self._pad(self._column)
        end = self._column + len(text)
        self._cells[self._column : end] = [(self._style, char) for char in text]
        self._column = end

    def _control(self, final: str, parameters: str, sequence: str) -> None:
        number = int(parameters) if parameters.isdecimal() else None
        match final:
            case "m":
                kept = self._style if len(self._style) < _MAX_STYLE_CHARS else ""
                self._style = "" if parameters in ("", "0") else kept + sequence
            case "K" if number in (None, 0):
                del self._cells[self._column :]
            case "K":
                rest = self._cells[self._column + 1 :] if number == 1 else []
                self._cells = [*[("", " ")] * (self._column + 1), *rest] if rest else []
            case "G":
                self._column = min(max(1, number or 1), _MAX_COLUMN) - 1
            case "C":
                self._column += min(number or 1, _MAX_COLUMN)
            case "D":
                self._column = max(0, self._column - (number or 1))
            case _:
                pass

    def _pad(self, column: int) -> None:
        self._cells.extend([("", " ")] * (column - len(self._cells)))

    def _shown(self) -> str:
        shown: list[str] = []
        style = ""
        for cell_style, char in self._cells:
            if cell_style != style:
                shown.append(f"{_RESET}{cell_style}" if style else cell_style)
                style = cell_style
            shown.append(char)
        if style:
            shown.append(_RESET)
        return "".join(shown)
