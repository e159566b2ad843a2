"""Files of an assistant. An error names the invalid field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from banksman.contracts.assistants import NewAssistant
from banksman.contracts.errors import BadInput
from banksman.contracts.wire import parse
from banksman.contracts.workspaces import MAX_FILES, MAX_FILES_BYTES


def given(*files: dict[str, Any]) -> NewAssistant:
    return parse(NewAssistant, json.dumps({"files": files}).encode())


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/workspace/a",
        "../a",
        "a/../../b",
        "a//b",
        "a/",
        "./a",
        "",
        "a\0b",
        "a/.banksman-x/b",
        "n" * 256,
        "/".join("p" * 17),
        "x" * 100 + "/" + "y" * 450,
    ],
)
def test_invalid_workspace_path_is_refused_by_name(path: str) -> None:
    with pytest.raises(BadInput, match=r"files\.1\.path"):
        given({"path": "fine", "content": ""}, {"path": path, "content": ""})


@pytest.mark.parametrize(
    ("files", "field"),
    [
        (({"path": "a", "content": "?", "encoding": "base64"},), r"files\.0\.content"),
        (({"path": "a", "content": "x", "encoding": "latin-1"},), r"files\.0\.encoding"),
        (({"path": "a"},), r"files.*the content of 'a'"),
        (({"path": "a", "content": "", "mode": 7},), r"files\.0\.mode"),
        (({"path": "a", "content": ""}, {"path": "a", "content": ""}), r"files.*each path once"),
        (
            ({"path": "a", "content": ""}, {"path": "a/b/c", "content": ""}),
            r"files.*'a/b/c' below another",
        ),
        (tuple({"path": f"f{n}", "content": ""} for n in range(MAX_FILES + 1)), "files.*100"),
        (({"path": "a", "content": "x" * MAX_FILES_BYTES},), rf"files.*{MAX_FILES_BYTES} bytes"),
        (({"path": "a", "content": "\u20ac" * (MAX_FILES_BYTES // 3)},), rf"files.*{MAX_FILES_BYTES} bytes"),
        (({"path": "a", "content": "\1" * (MAX_FILES_BYTES // 6)},), rf"files.*{MAX_FILES_BYTES} bytes"),
    ],
)
def test_invalid_set_of_files_is_refused_with_the_reason(
    files: tuple[dict[str, Any], ...], field: str
) -> None:
    with pytest.raises(BadInput, match=field):
        given(*files)


def test_files_up_to_the_limits_are_accepted_unchanged() -> None:
    files = [{"path": f"d{n}/f", "content": "\u20ac" * 800} for n in range(MAX_FILES - 1)]
    body = given(*files, {"path": ".claude/skills/x/run", "content": "/w==", "encoding": "base64"})
    assert [file.data for file in body.files] == [("\u20ac" * 800).encode()] * (MAX_FILES - 1) + [b"\xff"]
