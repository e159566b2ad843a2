"""Write docs/reference.md from the wire models: events, frames, error codes, subjects.

tools/reference.py           write the page
tools/reference.py --check   say whether the page is what the models say (part of `make lint`)
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from banksman.contracts import errors, events, frames, subjects

PAGE = Path(__file__).resolve().parents[1] / "docs/reference.md"


def main(arguments: list[str]) -> int:
    """Write or check; returns the exit code."""
    text = "\n".join(page()) + "\n"
    if arguments != ["--check"]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print("reference: docs/reference.md is not what the models say; run `make docs`", file=sys.stderr)
    return 1


def page() -> Iterator[str]:
    """The lines of the page."""
    yield "# Reference: events, frames, codes, subjects"
    yield ""
    yield "Written by `make docs` from `banksman.contracts`. The gateway serves the JSON Schemas of all"
    yield "frames at `/v1/schemas/ws.json`, and what travels over NATS at `/asyncapi`."
    yield from _section("Events", "What a conversation's log holds and clients see.", _event_models())
    yield from _section(
        "Frames of clients", "What a client sends.", get_args(get_args(frames.ClientFrame)[0])
    )
    yield from _section(
        "Frames of the server", "What a client is told besides events.", get_args(frames.ServerFrame)
    )
    yield from _codes()
    yield from _subjects()


def _event_models() -> Iterable[type[BaseModel]]:
    return get_args(get_args(events.KnownBody)[0])


def _section(title: str, lead: str, models: Iterable[type[BaseModel]]) -> Iterator[str]:
    yield from ("", f"## {title}", "", lead)
    for model in models:
        kind = get_args(model.model_fields["type"].annotation)[0]
        yield from ("", f"### `{kind}`", "", _sentence(model))
        schema = model.model_json_schema()
        fields = {name: field for name, field in schema["properties"].items() if name != "type"}
        if not fields:
            continue
        yield from ("", "| field | type | meaning |", "|---|---|---|")
        for name, field in fields.items():
            told = " ".join(str(field.get("description", "")).split())
            optional = "" if name in schema.get("required", ()) else ", optional"
            yield f"| `{name}` | {_type(field)}{optional} | {told} |"


def _sentence(model: type[BaseModel]) -> str:
    return " ".join((inspect.getdoc(model) or "").split())


def _type(schema: dict[str, Any]) -> str:
    """A type in JSON's words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema["enum"])
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " \\| ".join(dict.fromkeys(_type(choice) for choice in choices))
    kind = schema.get("type")
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}"
    if schema.get("format") == "date-time":
        return "date-time"
    return str(kind) if kind else "any JSON"


def _codes() -> Iterator[str]:
    yield from ("", "## Error codes", "", "In `error` frames, HTTP bodies and `run.finished.error`.", "")
    yield from (f"- `{code.value}`" for code in errors.ErrorCode)


def _subjects() -> Iterator[str]:
    yield from ("", "## Subjects", "", "| subject | for |", "|---|---|")
    for function in _builders():
        names = list(inspect.signature(function).parameters)
        meaning = " ".join((inspect.getdoc(function) or "").split())
        yield f"| `{_pattern(function, names)}` | {meaning} |"


def _builders() -> Iterator[Callable[..., str]]:
    skipped = {"check_token", "stored", "stored_results", "all_of", "api"}
    for name, function in vars(subjects).items():
        if inspect.isfunction(function) and not name.startswith("_") and name not in skipped:
            yield function


def _pattern(function: Callable[..., str], names: list[str]) -> str:
    built = function(*(f"-{name}-" for name in names))
    return re.sub(r"-(\w+)-", r"{\1}", built)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
