"""Fetches pages, and searches the web.

Character sets are those of the WHATWG: https://encoding.spec.whatwg.org/#names-and-labels. Python has further
codecs, such as punycode and unicode_escape, which are slow or no character sets.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import cast

import webencodings

from banksman.contracts.calls import SearchTarget
from banksman.contracts.urls import UrlRefused, parse_url
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.contracts.workspace_tools import WEB_FETCH, WEB_SEARCH
from banksman.runtime.redaction import Redaction
from banksman.runtime.search_apis import SearchFailed, request_to, results_in
from banksman.tool_runner.egress.client import Egress, Fetched, FetchFailed, Request, rules_of
from banksman.tool_runner.sandbox.base import run_until
from banksman.tool_runner.settings import RunnerLimits
from banksman.tool_runner.tools import toolbox
from banksman.tool_runner.tools.converter import ConversionFailed, Converter
from banksman.tool_runner.tools.texts import UTF_8, WEB_MARKS
from banksman.tool_runner.workspaces.workspace import Workspace

_DEFAULT_RESULTS = 10


class WebSearchTool:
    """Searches with the provider that a call's request names; its sender adds the provider with its key.

    Only the provider receives the key: it is sent over https, or to a server that the runner's operator has
    allowed by its address, and no redirect is followed.
    """

    definition = WEB_SEARCH

    def __init__(self, egress: Egress, limits: RunnerLimits) -> None:
        self._egress = egress
        self._max_chars = limits.max_output_chars

    async def run(self, arguments: JsonObject, run: toolbox.ToolRun) -> toolbox.ToolOutcome:
        """Request the provider once; only an explicit list of results counts as success."""
        target = run.search
        if target is None:
            return toolbox.failure("unavailable", "no search provider is configured for this tenant")
        count = int(cast(int, arguments.get("max_results", _DEFAULT_RESULTS)))
        try:
            request = self._request(target, str(arguments["query"]), count)
            sending = self._egress.send(request, timeout_s=run.timeout_s, within=rules_of(run.network))
            fetched = await run_until(sending, run.stop.wait())
            if fetched is None:
                return toolbox.failure("cancelled", "the search was cancelled")
            return await asyncio.to_thread(self._outcome, target, fetched, count)
        except UrlRefused as refused:
            return _failure("denied", target, str(refused))
        except FetchFailed as failed:
            return _failure("timeout" if failed.timed_out else "tool_error", target, str(failed))
        except SearchFailed as failed:
            return _failure("tool_error", target, str(failed))

    def _request(self, target: SearchTarget, query: str, count: int) -> Request:
        request = request_to(target, query, count)
        url = parse_url(request.url)
        if target.key is not None and url.scheme != "https" and not self._egress.trusts(url):
            raise UrlRefused("its address needs https, because a key is sent to it")
        headers = tuple((name.encode(), value.encode()) for name, value in request.headers.items())
        return Request(request.method, request.url, headers, request.content)

    def _outcome(self, target: SearchTarget, fetched: Fetched, count: int) -> toolbox.ToolOutcome:
        if fetched.truncated:
            raise SearchFailed(f"responded with more than {len(fetched.body)} bytes")
        found = list(results_in(target.provider, fetched.status, fetched.body))[:count]
        value: JsonObject = {"success": True, "provider": target.provider, "results": [], "truncated": False}
        room, kept = self._max_chars, list[JsonValue]()
        for result in found:
            room -= len(json.dumps(result, ensure_ascii=False))
            if room < 0:
                break
            kept.append(result)
        value |= {"results": kept, "truncated": len(kept) < len(found)}
        shown = cast(JsonObject, _redaction(target).of_content(value))
        return toolbox.ToolOutcome(value=shown, truncated=len(kept) < len(found))


def _redaction(target: SearchTarget) -> Redaction:
    return Redaction(() if target.key is None else (target.key,))


def _failure(kind: toolbox.ErrorKind, target: SearchTarget, why: str) -> toolbox.ToolOutcome:
    return toolbox.failure(kind, f"{target.provider}: {_redaction(target).of(why)}")


_TEXT_TYPES = re.compile(
    r"text/.*|application/(.*\+)?(json|xml)|application/(x-)?(javascript|ecmascript|ndjson|yaml|x-yaml)"
)
_PAGE_TYPES = ("text/html", "application/xhtml+xml")
_BEGINS_PAGE = re.compile(r"\s*<(!doctype html|html)\b", re.IGNORECASE)
_MAX_REASON_CHARS = 500
_MAX_TYPE_CHARS = 200
_MAX_URL_CHARS = 2000
"""Maximum characters that a model receives of texts that a page chooses, such as targets of redirects."""
_MAX_LABEL_CHARS = 40
# Possessive quantifiers keep the match linear on hostile pages.
_META_CHARSET = re.compile(
    rb"<meta[^>]{0,200}?charset\s*+=\s*+[\"']?+\s*+([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE
)
_META_BYTES = 2048


@dataclass(frozen=True, slots=True)
class _Shown:
    text: str
    is_markdown: bool = False
    note: str | None = None
    """What the model must know about the text; None if it is complete and in the requested format."""


class WebFetchTool:
    """Fetches a URL from the runner's own network: the sandbox has none."""

    definition = WEB_FETCH

    def __init__(self, egress: Egress, limits: RunnerLimits, converter: Converter) -> None:
        self._egress = egress
        self._max_chars = limits.max_output_chars
        self._pages = converter

    async def run(self, arguments: JsonObject, run: toolbox.ToolRun) -> toolbox.ToolOutcome:
        """GET `url`; an HTTP error status is a result with `success` false, not an error of the tool."""
        url = str(arguments["url"])
        try:
            get = self._egress.get(url, timeout_s=run.timeout_s, within=rules_of(run.network))
            fetched = await run_until(get, run.stop.wait())
        except UrlRefused as refused:
            return toolbox.failure("denied", f"web_fetch refused {url[:500]}: {_reason(refused)}", url=url)
        except FetchFailed as failed:
            kind = "timeout" if failed.timed_out else "tool_error"
            return toolbox.failure(kind, f"web_fetch of {url[:500]} failed: {_reason(failed)}", url=url)
        if fetched is None:
            return toolbox.failure("cancelled", "the fetch was cancelled", url=url)
        media_type = _media_type(fetched)
        if media_type and not _TEXT_TYPES.fullmatch(media_type):
            return _described(fetched, media_type)
        wants_markdown = arguments.get("format") == "markdown"
        shown = await run_until(self._shown(fetched, run.workspace, wants_markdown), run.stop.wait())
        if shown is None:
            return toolbox.failure("cancelled", "the fetch was cancelled", url=url)
        if self._is_long(fetched, shown):
            await run.workspace.meter.before_write()
        return await asyncio.to_thread(self._result, fetched, shown, run.workspace)

    async def _shown(self, fetched: Fetched, workspace: Workspace, wants_markdown: bool) -> _Shown:
        shown = await self._decoded(fetched, workspace)
        if not wants_markdown or shown.note is not None:
            return shown
        return await self._markdown(fetched, shown.text, workspace)

    async def _decoded(self, fetched: Fetched, workspace: Workspace) -> _Shown:
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
            markdown = await self._pages.markdown(text, base_url=fetched.url, identity=workspace.identity)
        except ConversionFailed as failed:
            return _Shown(text, note=f"The page is returned unchanged, not as Markdown: {failed}.")
        if text.strip() and not markdown.text.strip():
            return _Shown(text, note="The page is returned unchanged: its Markdown would be empty.")
        note = f"The page is incomplete: {' '.join(markdown.warnings)}" if markdown.warnings else None
        return _Shown(markdown.text, is_markdown=True, note=note)

    def _result(self, fetched: Fetched, shown: _Shown, workspace: Workspace) -> toolbox.ToolOutcome:
        text = shown.text
        truncated = self._is_long(fetched, shown)
        value = _facts(fetched) | {"body": text[: self._max_chars], "truncated": truncated}
        if shown.is_markdown:
            value["format"] = "markdown"
        if shown.note is not None:
            value["note"] = shown.note
        whole = text.encode("utf-8", "replace") if truncated else None
        if whole is not None and (path := toolbox.store_output(workspace, whole)):
            value |= {"full_output_path": path, "more": self._more(fetched, text, path)}
        return toolbox.ToolOutcome(value=value, truncated=truncated, output=whole)

    def _is_long(self, fetched: Fetched, shown: _Shown) -> bool:
        return fetched.truncated or len(shown.text) > self._max_chars

    def _more(self, fetched: Fetched, text: str, path: str) -> str:
        bound = "Only the beginning of the page was fetched." if fetched.truncated else ""
        shown = text[: self._max_chars].encode("utf-8", "replace")
        rest = toolbox.continuation(path, len(shown)) if len(text) > self._max_chars else ""
        return " ".join(part for part in (bound, rest) if part)


def _facts(fetched: Fetched) -> JsonObject:
    return {
        "success": 200 <= fetched.status < 300,
        "url": fetched.url[:_MAX_URL_CHARS],
        "status": fetched.status,
        "content_type": fetched.content_type[:_MAX_TYPE_CHARS],
        "total_bytes": len(fetched.body),
    }


def _described(fetched: Fetched, media_type: str) -> toolbox.ToolOutcome:
    cut = bool(fetched.body)
    message = f"{media_type[:_MAX_TYPE_CHARS]} is not shown as text"
    value = _facts(fetched) | {"body": "", "truncated": cut, "message": message}
    return toolbox.ToolOutcome(value=value, truncated=cut, output=fetched.body or None)


def _media_type(fetched: Fetched) -> str:
    return fetched.content_type.partition(";")[0].strip().lower()


def _is_page(fetched: Fetched, text: str) -> bool:
    if media_type := _media_type(fetched):
        return media_type in _PAGE_TYPES
    return _BEGINS_PAGE.match(text) is not None


def _reason(error: Exception) -> str:
    return str(error)[:_MAX_REASON_CHARS]


def charset(content_type: str, body: bytes) -> str:
    """Return the character set that the byte order mark, the header or the page names, in this order.

    Missing and unknown names mean UTF-8.
    """
    for mark, name in WEB_MARKS:
        if body.startswith(mark):
            return name
    _, _, parameter = content_type.lower().partition("charset=")
    label = parameter.partition(";")[0].strip().strip("\"'")
    if not label and (found := _META_CHARSET.search(body[:_META_BYTES])):
        label = found[1].decode("ascii")
    known = webencodings.lookup(label) if len(label) <= _MAX_LABEL_CHARS else None
    return UTF_8 if known is None else known.name
