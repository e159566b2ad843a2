"""What has changed in a workspace since a run began, or since the workspace began, as a patch."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from banksman.contracts.errors import Unavailable
from banksman.contracts.runner_requests import DiffedFile, FileDiff, NotCompared, WorkspaceDiff
from banksman.contracts.tools import Change
from banksman.contracts.wire import json_bytes
from banksman.tool_runner.identity import SandboxIdentity
from banksman.tool_runner.settings import MarkdownLimits
from banksman.tool_runner.tools.converter import ConversionFailed, Converter
from banksman.tool_runner.tools.patch import FileTexts
from banksman.tool_runner.workspaces.baseline import Content
from banksman.tool_runner.workspaces.workspace import Workspace

MAX_FILES = 1_000
MAX_LISTED_BYTES = 192 * 1024
MAX_COMPARED_CHARS = 2 * 1024 * 1024
"""Characters of all texts together that are compared."""
MAX_PATCH_BYTES = 512 * 1024
"""Bytes of the patch as JSON: a reply has at most 1 MiB."""
_REASONS: dict[NotCompared, str] = {
    "binary": "binary",
    "too_large": "too large",
    "unknown": "the content before or after is unknown",
    "no_room": "the patch would be too long",
}
_Found = tuple[str, Content, Content]


@dataclass(frozen=True, slots=True)
class Diffs:
    limits: MarkdownLimits

    async def diff(self, workspace: Workspace, request: FileDiff) -> WorkspaceDiff:
        found, more = await asyncio.to_thread(workspace.baseline.since, request.since)
        if request.path:
            found, more = [one for one in found if one[0] == request.path], 0
        listed = _listed(found)
        why = _not_compared(listed)
        compared = [one for one in listed if one[0] not in why]
        patches = await self._patches(list(map(_texts, compared)), workspace.identity)
        room, fitting = MAX_PATCH_BYTES, list[str]()
        for (path, *_), patch in zip(compared, patches, strict=True):
            room -= json_bytes(patch)
            if room >= 0:
                fitting.append(patch)
            else:
                why[path] = "no_room"
        files = tuple(
            DiffedFile(path=path, change=_change(before, after), not_compared=why.get(path))
            for path, before, after in listed
        )
        missing = (f"# {path}: not in this patch ({_REASONS[reason]})\n" for path, reason in why.items())
        return WorkspaceDiff(
            files=files, more=more + len(found) - len(listed), patch="".join((*missing, *fitting))
        )

    async def _patches(self, files: list[FileTexts], identity: SandboxIdentity) -> list[str]:
        if not files:
            return []
        converter = Converter(self.limits)
        try:
            with contextlib.suppress(ConversionFailed):
                return await converter.patches(files, plain=False, identity=identity)
            # Texts can be made whose comparison takes hours.
            return await converter.patches(files, plain=True, identity=identity)
        except ConversionFailed as failed:
            raise Unavailable(f"the files are not compared: {failed}") from failed


def _listed(found: list[_Found]) -> list[_Found]:
    room = MAX_LISTED_BYTES
    for number, (path, *_) in enumerate(found[:MAX_FILES]):
        room -= json_bytes(path) + 100
        if room < 0:
            return found[:number]
    return found[:MAX_FILES]


def _not_compared(listed: list[_Found]) -> dict[str, NotCompared]:
    why: dict[str, NotCompared] = {}
    room = MAX_COMPARED_CHARS
    for path, before, after in listed:
        kinds = (before.kind, after.kind)
        room -= len(before.text) + len(after.text)
        for kind in ("unknown", "binary", "too_large"):
            if kind in kinds:
                why[path] = kind
        if path not in why and room < 0:
            why[path] = "no_room"
    return why


def _texts(found: _Found) -> FileTexts:
    path, before, after = found
    return FileTexts(path, before.kind, before.text, after.kind, after.text)


def _change(before: Content, after: Content) -> Change:
    if before.kind == "absent":
        return "created"
    return "deleted" if after.kind == "absent" else "modified"
