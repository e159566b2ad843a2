"""Small plots as SVG: stacked bars, and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

COLOURS = ("#3b6ea5", "#d98032", "#4f9d69", "#b0476a", "#8a6fb0", "#8c7a5b", "#6b7680", "#222222", "#bbbbbb")
WIDTH = 760
LEFT, RIGHT, TOP, ROW = 190, 70, 40, 30
PLOT_HEIGHT = 220


def bars(title: str, rows: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """Return horizontal bars, each stacked from named parts and labelled with its sum."""
    parts = list(dict.fromkeys(name for row in rows.values() for name in row))
    most = max(sum(row.values()) for row in rows.values())
    scale = (WIDTH - LEFT - RIGHT) / most
    body: list[str] = []
    for number, (name, row) in enumerate(rows.items()):
        top, left = TOP + number * ROW, float(LEFT)
        body.append(_text(LEFT - 8, top + 15, name, anchor="end"))
        for part, value in row.items():
            body.append(_bar(left, top, value * scale, COLOURS[parts.index(part) % len(COLOURS)]))
            left += value * scale
        body.append(_text(left + 6, top + 15, f"{sum(row.values()):.1f} {unit}"))
    bottom = TOP + len(rows) * ROW
    return _document(title, body + _legend(parts, bottom + 18), bottom + 36)


def lines(title: str, rows: Mapping[str, Sequence[float]], names: Sequence[str], unit: str) -> str:
    """Return lines over named positions, with an axis from zero."""
    most = max(value for row in rows.values() for value in row)
    step = (WIDTH - LEFT - RIGHT) / max(1, len(names) - 1)
    bottom = TOP + PLOT_HEIGHT
    body = [
        _text(LEFT - 8, TOP + 5, f"{most:.0f} {unit}", anchor="end"),
        _text(LEFT - 8, bottom, "0", anchor="end"),
    ]
    body.append(f'<path d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="#999"/>')
    body += [_text(LEFT + i * step, bottom + 18, name, anchor="middle") for i, name in enumerate(names)]
    for number, row in enumerate(rows.values()):
        points = [(LEFT + i * step, bottom - value / most * PLOT_HEIGHT) for i, value in enumerate(row)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        colour = COLOURS[number % len(COLOURS)]
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = points[-1]
        body.append(_text(x + 6, y + 4, f"{row[-1]:.0f}"))
    return _document(title, body + _legend(list(rows), bottom + 40), bottom + 58)


def _bar(left: float, top: float, width: float, colour: str) -> str:
    return f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 9}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


def _legend(names: Sequence[str], top: float) -> list[str]:
    found: list[str] = []
    left = 20.0
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        found.append(f'<rect x="{left:.0f}" y="{top - 10:.0f}" width="11" height="11" fill="{colour}"/>')
        found.append(_text(left + 16, top, name))
        left += 36 + 6.6 * len(name)
    return found


def _document(title: str, body: Sequence[str], height: float) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'font-family="sans-serif" font-size="12" role="img">'
    )
    background = f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>'
    heading = f'<text x="20" y="22" font-size="14" font-weight="bold">{escape(title)}</text>'
    return "\n".join((head, f"<title>{escape(title)}</title>", background, heading, *body, "</svg>\n"))
