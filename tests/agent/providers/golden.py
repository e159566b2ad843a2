"""Exact comparison with golden files; `tools/renew_golden.py --overwrite` rewrites them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from banksman.agent.protocols.base import ModelReply

FOLDER = Path(__file__).parent / "golden"
SWITCH = "BANKSMAN_RENEW_GOLDEN"


def golden(name: str, found: Any) -> Any:
    """Return the content of a golden file. With the switch on, write `found` to it first."""
    path = FOLDER / f"{name}.json"
    if os.environ.get(SWITCH) == "overwrite":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    assert path.is_file(), f"{path.name} is missing; tools/renew_golden.py --overwrite writes it"
    return json.loads(path.read_text(encoding="utf-8"))


def plain(reply: ModelReply) -> dict[str, Any]:
    """Return a reply as JSON, without its notices and without what depends on the server's address."""
    fields = asdict(replace(reply, notices=())) | {"usage": reply.usage.model_dump()}
    del fields["notices"]
    if reply.provider_state:
        fields["provider_state"] = {k: v for k, v in reply.provider_state.items() if k != "origin"}
    return json.loads(json.dumps(fields))
