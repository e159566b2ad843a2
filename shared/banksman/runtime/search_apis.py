"""How SearXNG, Brave and Tavily are requested, and how their responses are read. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from html import unescape
from urllib.parse import urlencode

from pydantic_core import from_json

from banksman.contracts.calls import SearchTarget
from banksman.contracts.tools import SearchApi
from banksman.contracts.urls import UrlRefused, parse_url
from banksman.contracts.wire import JsonObject, JsonValue

MAX_RESPONSE_BYTES = 512 * 1024
"""Maximum bytes of a response; providers return up to 200 KiB for 20 results."""
_MAX_TITLE_CHARS = 300
_MAX_URL_CHARS = 2_000
_MAX_SNIPPET_CHARS = 600
_MAX_DATE_CHARS = 64
_MAX_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A request to a provider. `content` is the body."""

    method: str
    url: str
    headers: dict[str, str]
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class _Api:
    """How a provider is requested, and where its responses have results and errors."""

    request: Callable[[SearchTarget, str, int], SearchRequest]
    results: tuple[str, ...]
    snippet: str
    date: str
    error: tuple[str, ...]


def _searxng(target: SearchTarget, query: str, _count: int) -> SearchRequest:
    """See https://docs.searxng.org/dev/search_api.html. It has no number of results."""
    headers = {} if target.key is None else {"Authorization": f"Bearer {target.key}"}
    return _get(target.url or "", {"q": query, "format": "json"}, headers)


def _brave(target: SearchTarget, query: str, count: int) -> SearchRequest:
    """See https://api-dashboard.search.brave.com/documentation."""
    values = {"q": query, "count": count, "text_decorations": "false", "result_filter": "web"}
    url = target.url or "https://api.search.brave.com/res/v1/web/search"
    return _get(url, values, {"X-Subscription-Token": target.key or ""})


def _tavily(target: SearchTarget, query: str, count: int) -> SearchRequest:
    """See https://docs.tavily.com/documentation/api-reference/endpoint/search."""
    headers = {"Authorization": f"Bearer {target.key}", "Content-Type": "application/json"}
    content = json.dumps({"query": query, "max_results": count}).encode()
    return SearchRequest("POST", target.url or "https://api.tavily.com/search", headers, content)


def _get(url: str, values: dict[str, str | int], headers: dict[str, str]) -> SearchRequest:
    return SearchRequest("GET", f"{url}{'&' if '?' in url else '?'}{urlencode(values)}", headers)


_APIS: dict[SearchApi, _Api] = {
    "searxng": _Api(_searxng, ("results",), "content", "publishedDate", ("error",)),
    "brave": _Api(_brave, ("web", "results"), "description", "page_age", ("error", "detail")),
    "tavily": _Api(_tavily, ("results",), "content", "published_date", ("detail", "error")),
}


def request_to(target: SearchTarget, query: str, count: int) -> SearchRequest:
    """Return the request for at most `count` results, as far as the provider has such a number."""
    return _APIS[target.provider].request(target, query, count)


class SearchFailed(Exception):
    """The provider returned no results; the text is for the model, before secrets are removed from it."""


def results_in(provider: SearchApi, status: int, content: bytes) -> Iterator[JsonObject]:
    """Yield the results with an http address; raise `SearchFailed` for a response without results.

    `content` may be the beginning of a response that is longer than `MAX_RESPONSE_BYTES`.
    """
    api = _APIS[provider]
    body = _body(status, content)
    if status != 200:
        detail = _at(body, api.error)
        hint = "(is json among the formats of its settings?)" if provider == "searxng" else ""
        stated = detail[:_MAX_ERROR_CHARS] if isinstance(detail, str) else hint
        raise SearchFailed(f"responded with status {status} {stated}".strip())
    listed = _at(body, api.results)
    # SearXNG responds with 200 and no results if all its engines failed; Brave omits `web` without results.
    failed = _at(body, ("unresponsive_engines",))
    if not listed and failed:
        raise SearchFailed(f"none of its engines responded: {json.dumps(failed)[:_MAX_ERROR_CHARS]}")
    if not isinstance(body, dict) or not isinstance(listed, list | None):
        raise SearchFailed("responded with something else than results")
    for item in listed or ():
        if isinstance(item, dict) and (result := _result(api, item)):
            yield result


def _body(status: int, content: bytes) -> JsonValue:
    if len(content) > MAX_RESPONSE_BYTES:
        raise SearchFailed(f"responded with more than {MAX_RESPONSE_BYTES} bytes")
    try:
        return from_json(content)
    except ValueError as error:
        if status != 200:
            return None
        raise SearchFailed("responded with something else than JSON") from error


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
