from __future__ import annotations

import asyncio
import codecs
import re

from banksman.contracts.wire import JsonObject
from banksman.contracts.workspace_tools import WEB_FETCH
from banksman.tool_runner.concurrency import unless
from banksman.tool_runner.egress import Egress, Fetched, FetchFailed, FetchRefused
from banksman.tool_runner.limits import RunnerLimits
from banksman.tool_runner.tools.base import ToolOutcome, ToolRun, failure
from banksman.tool_runner.tools.pages import how_to_go_on, keep_whole
from banksman.tool_runner.workspace import Workspace

_TEXT_TYPES = re.compile(
    r"text/.*|application/(.*\+)?(json|xml)|application/(x-)?(javascript|ecmascript|ndjson|yaml|x-yaml)"
)
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_META_BYTES = 2048


class WebFetch:
    """Fetches a URL from the runner's own network: the sandbox has none."""

    definition = WEB_FETCH
    exclusive = False

    def __init__(self, egress: Egress, limits: RunnerLimits) -> None:
        self._egress = egress
        self._max_chars = limits.max_output_chars

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        """GET `url`; an HTTP error status is a result with `success` false, not an error of the tool."""
        url = str(arguments["url"])
        try:
            fetched = await unless(self._egress.get(url, timeout_s=run.timeout_s), run.stop.wait())
        except FetchRefused as refused:
            return failure("denied", f"web_fetch refused {url[:500]}: {refused}", url=url)
        except FetchFailed as failed:
            kind = "timeout" if failed.timed_out else "tool_error"
            return failure(kind, f"web_fetch of {url[:500]} failed: {failed}", url=url)
        if fetched is None:
            return failure("cancelled", "the fetch was cancelled", url=url)
        return await asyncio.to_thread(self._result, fetched, run.workspace)

    def _result(self, fetched: Fetched, workspace: Workspace) -> ToolOutcome:
        media_type = fetched.content_type.partition(";")[0].strip().lower()
        value: JsonObject = {
            "success": 200 <= fetched.status < 300,
            "url": fetched.url,
            "status": fetched.status,
            "content_type": fetched.content_type,
            "total_bytes": len(fetched.body),
        }
        if media_type and not _TEXT_TYPES.fullmatch(media_type):
            value |= {
                "body": "",
                "truncated": bool(fetched.body),
                "message": f"{media_type} is not shown as text",
            }
            return ToolOutcome(value=value, truncated=bool(fetched.body), output=fetched.body or None)
        text = _text(fetched)
        truncated = fetched.truncated or len(text) > self._max_chars
        value |= {"body": text[: self._max_chars], "truncated": truncated}
        whole = text.encode("utf-8", "replace") if truncated else None
        if whole is not None and (path := keep_whole(workspace, whole)):
            value |= {"full_output_path": path, "more": self._more(fetched, text, path)}
        return ToolOutcome(value=value, truncated=truncated, output=whole)

    def _more(self, fetched: Fetched, text: str, path: str) -> str:
        bound = "Only the beginning of the page was fetched." if fetched.truncated else ""
        shown = text[: self._max_chars].encode("utf-8", "replace")
        rest = how_to_go_on(path, len(shown)) if len(text) > self._max_chars else ""
        return " ".join(part for part in (bound, rest) if part)


def _text(fetched: Fetched) -> str:
    """Decode by the header, else by the page's own word, else as UTF-8; what does not fit becomes U+FFFD."""
    try:
        return fetched.body.decode(_charset(fetched), "replace")
    except (LookupError, UnicodeError):
        return fetched.body.decode("utf-8", "replace")


def _charset(fetched: Fetched) -> str:
    _, _, parameter = fetched.content_type.lower().partition("charset=")
    named = parameter.partition(";")[0].strip().strip("\"'")
    if not named and (found := _META_CHARSET.search(fetched.body[:_META_BYTES])):
        named = found[1].decode("ascii")
    try:
        # Python also knows codecs that are no character sets, such as hex and zlib.
        return named if named and codecs.lookup(named)._is_text_encoding else "utf-8"
    except LookupError:
        return "utf-8"
