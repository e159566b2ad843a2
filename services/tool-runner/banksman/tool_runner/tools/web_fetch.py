from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from banksman.contracts.wire import JsonObject
from banksman.contracts.workspace_tools import WEB_FETCH
from banksman.tool_runner.concurrency import run_until
from banksman.tool_runner.egress.client import Egress, Fetched, FetchFailed
from banksman.tool_runner.egress.rules import FetchRefused, rules_of
from banksman.tool_runner.limits import RunnerLimits
from banksman.tool_runner.tools.base import ToolOutcome, ToolRun, continuation, failure, store_output
from banksman.tool_runner.tools.page_converter import UTF_8, ConversionFailed, PageConverter, charset
from banksman.tool_runner.workspaces.workspace import Workspace

_TEXT_TYPES = re.compile(
    r"text/.*|application/(.*\+)?(json|xml)|application/(x-)?(javascript|ecmascript|ndjson|yaml|x-yaml)"
)
_PAGE_TYPES = ("text/html", "application/xhtml+xml")
_BEGINS_PAGE = re.compile(r"\s*<(!doctype html|html)\b", re.IGNORECASE)
_MAX_REASON_CHARS = 500
_MAX_TYPE_CHARS = 200
_MAX_URL_CHARS = 2000
"""Maximum characters that a model receives of texts that a page chooses, such as targets of redirects."""


@dataclass(frozen=True, slots=True)
class _Shown:
    text: str
    is_markdown: bool = False
    note: str | None = None
    """What the model must know about the text; None if it is complete and in the requested format."""


class WebFetchTool:
    """Fetches a URL from the runner's own network: the sandbox has none."""

    definition = WEB_FETCH

    def __init__(self, egress: Egress, limits: RunnerLimits) -> None:
        self._egress = egress
        self._max_chars = limits.max_output_chars
        self._pages = PageConverter(limits.markdown)

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        """GET `url`; an HTTP error status is a result with `success` false, not an error of the tool."""
        url = str(arguments["url"])
        try:
            get = self._egress.get(url, timeout_s=run.timeout_s, within=rules_of(run.network))
            fetched = await run_until(get, run.stop.wait())
        except FetchRefused as refused:
            return failure("denied", f"web_fetch refused {url[:500]}: {_reason(refused)}", url=url)
        except FetchFailed as failed:
            kind = "timeout" if failed.timed_out else "tool_error"
            return failure(kind, f"web_fetch of {url[:500]} failed: {_reason(failed)}", url=url)
        if fetched is None:
            return failure("cancelled", "the fetch was cancelled", url=url)
        media_type = _media_type(fetched)
        if media_type and not _TEXT_TYPES.fullmatch(media_type):
            return _described(fetched, media_type)
        wants_markdown = arguments.get("format") == "markdown"
        shown = await run_until(self._shown(fetched, run.workspace, wants_markdown), run.stop.wait())
        if shown is None:
            return failure("cancelled", "the fetch was cancelled", url=url)
        if self._is_long(fetched, shown):
            await run.workspace.meter.before_write()
        return await asyncio.to_thread(self._result, fetched, shown, run.workspace)

    async def _shown(self, fetched: Fetched, workspace: Workspace, wants_markdown: bool) -> _Shown:
        shown = await self._decoded(fetched, workspace)
        if not wants_markdown or shown.note is not None:
            return shown
        return await self._markdown(fetched, shown.text, workspace)

    async def _decoded(self, fetched: Fetched, workspace: Workspace) -> _Shown:
        """Decode a page by its own character set, or as UTF-8 if that fails."""
        name, note = charset(fetched.content_type, fetched.body), None
        if name != UTF_8:
            try:
                return _Shown(await self._pages.decode(fetched.body, name, identity=workspace.identity))
            except ConversionFailed as failed:
                note = f"The page is decoded as UTF-8, not as {name}: {failed}."
        # Only this decoder runs in the runner: it takes a few milliseconds for the longest page.
        return _Shown(await asyncio.to_thread(fetched.body.decode, "utf-8-sig", "replace"), note=note)

    async def _markdown(self, fetched: Fetched, text: str, workspace: Workspace) -> _Shown:
        """Convert a page to Markdown; return other content, and pages that cannot be converted, unchanged."""
        if not _is_page(fetched, text):
            return _Shown(text)
        try:
            markdown = await self._pages.convert(text, base_url=fetched.url, identity=workspace.identity)
        except ConversionFailed as failed:
            return _Shown(text, note=f"The page is returned unchanged, not as Markdown: {failed}.")
        if text.strip() and not markdown.text.strip():
            return _Shown(text, note="The page is returned unchanged: its Markdown would be empty.")
        note = f"The page is incomplete: {' '.join(markdown.warnings)}" if markdown.warnings else None
        return _Shown(markdown.text, is_markdown=True, note=note)

    def _result(self, fetched: Fetched, shown: _Shown, workspace: Workspace) -> ToolOutcome:
        text = shown.text
        truncated = self._is_long(fetched, shown)
        value = _facts(fetched) | {"body": text[: self._max_chars], "truncated": truncated}
        if shown.is_markdown:
            value["format"] = "markdown"
        if shown.note is not None:
            value["note"] = shown.note
        whole = text.encode("utf-8", "replace") if truncated else None
        if whole is not None and (path := store_output(workspace, whole)):
            value |= {"full_output_path": path, "more": self._more(fetched, text, path)}
        return ToolOutcome(value=value, truncated=truncated, output=whole)

    def _is_long(self, fetched: Fetched, shown: _Shown) -> bool:
        """Return whether the model gets a part of the page, so that the page is stored."""
        return fetched.truncated or len(shown.text) > self._max_chars

    def _more(self, fetched: Fetched, text: str, path: str) -> str:
        bound = "Only the beginning of the page was fetched." if fetched.truncated else ""
        shown = text[: self._max_chars].encode("utf-8", "replace")
        rest = continuation(path, len(shown)) if len(text) > self._max_chars else ""
        return " ".join(part for part in (bound, rest) if part)


def _facts(fetched: Fetched) -> JsonObject:
    return {
        "success": 200 <= fetched.status < 300,
        "url": fetched.url[:_MAX_URL_CHARS],
        "status": fetched.status,
        "content_type": fetched.content_type[:_MAX_TYPE_CHARS],
        "total_bytes": len(fetched.body),
    }


def _described(fetched: Fetched, media_type: str) -> ToolOutcome:
    cut = bool(fetched.body)
    message = f"{media_type[:_MAX_TYPE_CHARS]} is not shown as text"
    value = _facts(fetched) | {"body": "", "truncated": cut, "message": message}
    return ToolOutcome(value=value, truncated=cut, output=fetched.body or None)


def _media_type(fetched: Fetched) -> str:
    return fetched.content_type.partition(";")[0].strip().lower()


def _is_page(fetched: Fetched, text: str) -> bool:
    """Return whether a response is HTML, by its content type, or without one by its first characters."""
    if media_type := _media_type(fetched):
        return media_type in _PAGE_TYPES
    return _BEGINS_PAGE.match(text) is not None


def _reason(error: Exception) -> str:
    """Return the message of an error, which may repeat text of a page."""
    return str(error)[:_MAX_REASON_CHARS]
