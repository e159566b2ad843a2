"""Searches the web with the provider that the request for a call names: SearXNG, Brave or Tavily.

The sender of the call adds the provider with its key. Only the provider receives the key: it is sent over
https, or to a server that the runner's operator has allowed by its address, and no redirect is followed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from html import unescape
from typing import cast
from urllib.parse import urlencode

from pydantic_core import from_json

from banksman.contracts.calls import SearchApi, SearchTarget
from banksman.contracts.urls import UrlRefused, parse_url
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.contracts.workspace_tools import WEB_SEARCH
from banksman.runtime.redaction import Redaction
from banksman.tool_runner.egress.client import Egress, Fetched, FetchFailed, Request, rules_of
from banksman.tool_runner.sandbox.base import run_until
from banksman.tool_runner.settings import RunnerLimits
from banksman.tool_runner.tools import toolbox

MAX_RESPONSE_BYTES = 512 * 1024
"""Maximum bytes of a response; providers return up to 200 KiB for 20 results."""
_DEFAULT_RESULTS = 10
_MAX_TITLE_CHARS = 300
_MAX_URL_CHARS = 2_000
_MAX_SNIPPET_CHARS = 600
_MAX_DATE_CHARS = 64
_MAX_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True)
class _Api:
    """How a provider is requested, and where its responses have results and errors."""

    request: Callable[[SearchTarget, str, int], Request]
    results: tuple[str, ...]
    snippet: str
    date: str
    error: tuple[str, ...]


def _searxng(target: SearchTarget, query: str, _count: int) -> Request:
    """See https://docs.searxng.org/dev/search_api.html. It has no number of results."""
    headers = () if target.key is None else ((b"Authorization", f"Bearer {target.key}".encode()),)
    return _get(target.url or "", {"q": query, "format": "json"}, headers)


def _brave(target: SearchTarget, query: str, count: int) -> Request:
    """See https://api-dashboard.search.brave.com/documentation."""
    values = {"q": query, "count": count, "text_decorations": "false", "result_filter": "web"}
    url = target.url or "https://api.search.brave.com/res/v1/web/search"
    return _get(url, values, ((b"X-Subscription-Token", (target.key or "").encode()),))


def _tavily(target: SearchTarget, query: str, count: int) -> Request:
    """See https://docs.tavily.com/documentation/api-reference/endpoint/search."""
    headers = (
        (b"Authorization", f"Bearer {target.key}".encode()),
        (b"Content-Type", b"application/json"),
    )
    content = json.dumps({"query": query, "max_results": count}).encode()
    return Request("POST", target.url or "https://api.tavily.com/search", headers, content)


def _get(url: str, values: dict[str, str | int], headers: tuple[tuple[bytes, bytes], ...]) -> Request:
    return Request("GET", f"{url}{'&' if '?' in url else '?'}{urlencode(values)}", headers)


_APIS: dict[SearchApi, _Api] = {
    "searxng": _Api(_searxng, ("results",), "content", "publishedDate", ("error",)),
    "brave": _Api(_brave, ("web", "results"), "description", "page_age", ("error", "detail")),
    "tavily": _Api(_tavily, ("results",), "content", "published_date", ("detail", "error")),
}


class _SearchFailed(Exception):
    """The provider returned no results; the text is for the model, before secrets are removed from it."""


class WebSearchTool:
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
        except _SearchFailed as failed:
            return _failure("tool_error", target, str(failed))

    def _request(self, target: SearchTarget, query: str, count: int) -> Request:
        request = _APIS[target.provider].request(target, query, count)
        url = parse_url(request.url)
        if target.key is not None and url.scheme != "https" and not self._egress.trusts(url):
            raise UrlRefused("its address needs https, because a key is sent to it")
        return request

    def _outcome(self, target: SearchTarget, fetched: Fetched, count: int) -> toolbox.ToolOutcome:
        found = list(_results(target.provider, fetched))[:count]
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


def _results(provider: SearchApi, fetched: Fetched) -> Iterator[JsonObject]:
    """Yield the results with an http address; raise `_SearchFailed` for a response without results."""
    api = _APIS[provider]
    body = _body(fetched)
    if fetched.status != 200:
        detail = _at(body, api.error)
        hint = "(is json among the formats of its settings?)" if provider == "searxng" else ""
        stated = detail[:_MAX_ERROR_CHARS] if isinstance(detail, str) else hint
        raise _SearchFailed(f"responded with status {fetched.status} {stated}".strip())
    listed = _at(body, api.results)
    # SearXNG responds with 200 and no results if all its engines failed; Brave omits `web` without results.
    failed = _at(body, ("unresponsive_engines",))
    if not listed and failed:
        raise _SearchFailed(f"none of its engines responded: {json.dumps(failed)[:_MAX_ERROR_CHARS]}")
    if not isinstance(body, dict) or not isinstance(listed, list | None):
        raise _SearchFailed("responded with something else than results")
    for item in listed or ():
        if isinstance(item, dict) and (result := _result(api, item)):
            yield result


def _body(fetched: Fetched) -> JsonValue:
    if fetched.truncated or len(fetched.body) > MAX_RESPONSE_BYTES:
        raise _SearchFailed(f"responded with more than {MAX_RESPONSE_BYTES} bytes")
    try:
        return from_json(fetched.body)
    except ValueError as error:
        if fetched.status != 200:
            return None
        raise _SearchFailed("responded with something else than JSON") from error


def _at(value: JsonValue, path: tuple[str, ...]) -> JsonValue:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _result(api: _Api, item: JsonObject) -> JsonObject | None:
    url = item.get("url")
    try:
        address = str(parse_url(url)) if isinstance(url, str) and len(url) <= _MAX_URL_CHARS else None
    except UrlRefused:
        address = None
    if address is None:
        return None
    result: JsonObject = {
        "title": _text(item.get("title"), _MAX_TITLE_CHARS),
        "url": address,
        "snippet": _text(item.get(api.snippet), _MAX_SNIPPET_CHARS),
    }
    return result | ({"date": day} if (day := _day(item.get(api.date))) else {})


def _text(value: JsonValue, max_chars: int) -> str:
    # Brave escapes texts as HTML.
    text = unescape(value[: 4 * max_chars]) if isinstance(value, str) else ""
    return " ".join(text.split())[:max_chars]


def _day(value: JsonValue) -> str | None:
    """Return a date as `2026-11-29`; Tavily writes dates as in e-mails, others as ISO 8601."""
    text = value[:_MAX_DATE_CHARS] if isinstance(value, str) else ""
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            return read(text).date().isoformat()
        except ValueError:
            continue
    return None


def _redaction(target: SearchTarget) -> Redaction:
    return Redaction(() if target.key is None else (target.key,))


def _failure(kind: toolbox.ErrorKind, target: SearchTarget, why: str) -> toolbox.ToolOutcome:
    return toolbox.failure(kind, f"{target.provider}: {_redaction(target).of(why)}")
