"""web_fetch with `format: markdown`: the conversion, and attacks of hostile pages."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import time
from ipaddress import ip_address
from typing import Any

import pytest
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.tool_runner.conftest import TLS, Runner, only, replying, serving

from banksman.tool_runner.egress.client import Egress
from banksman.tool_runner.lifecycle import workspace_tools
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.sandbox.bwrap import processes
from banksman.tool_runner.sandbox.seccomp import converter_filter
from banksman.tool_runner.settings import FetchLimits, MarkdownLimits, RunnerLimits
from banksman.tool_runner.tools import converter_process
from banksman.tool_runner.tools.toolbox import ToolOutcome

pytestmark = only("bwrap", "pages are converted beside the sandbox")

PAGE = """<!doctype html><html><head><title>T</title><style>p{}</style><script>var a="SCRIPT"</script></head>
<body><nav><a href="/home">NAVIGATION</a></nav><h1>Größe</h1><script>document.write("SCRIPT")</script>
<p>See <a href="../next?x=1&amp;y=2">the <b>next</b></a> page.</p><noscript>NOSCRIPT</noscript>
<ul><li>one<ul><li>two</li></ul></li></ul><pre><code class="language-sh">ls  -l</code></pre>
<table><tr><th>a</th><th>b</th></tr><tr><td>1|2</td><td><img src="/i.png" alt="pic"></td></tr></table>
<svg><text>SVG</text></svg><template>TEMPLATE</template></body></html>"""

MARKDOWN = """# Größe

See [the **next**](http://site.example:{port}/next?x=1&y=2) page.

- one
  * two

```sh
ls  -l
```

| a | b |
| --- | --- |
| 1\\|2 | ![pic](http://site.example:{port}/i.png) |
"""


PATIENT = MarkdownLimits(timeout_s=50)
"""The default limits with enough time for a busy machine."""


async def fetched(
    runner: Runner,
    body: bytes,
    content_type: str = "text/html; charset=utf-8",
    *,
    limits: MarkdownLimits | None = None,
    stop: Stop | None = None,
    **arguments: str,
) -> ToolOutcome:
    headers = (f"Content-Type: {content_type}",) if content_type else ()
    async with serving(replying(body, *headers)) as server:

        async def resolve(host: str, port: int) -> list[str]:
            return ["127.0.0.1"]

        way_out = Egress(
            FetchLimits(timeout_s=20),
            ports=frozenset({server.port}),
            resolver=resolve,
            address_allowed=lambda address: address == ip_address("127.0.0.1"),
            ssl_context=TLS,
        )
        box = workspace_tools(runner.sandbox, way_out, RunnerLimits(markdown=limits or PATIENT))
        url = server.url("/docs/page")
        return await box.run("web_fetch", runner.workspace, {"url": url, **arguments}, stop=stop)


async def test_markdown_has_absolute_links_and_no_scripts(runner: Runner) -> None:
    outcome = await fetched(runner, PAGE.encode(), format="markdown")
    port = str(outcome.value["url"]).split(":")[2].partition("/")[0]
    assert outcome.value["body"] == MARKDOWN.replace("{port}", port)
    assert (outcome.value["format"], outcome.value.get("note")) == ("markdown", None)


@pytest.mark.parametrize("arguments", [{}, {"format": "raw"}])
async def test_page_is_returned_unchanged_unless_markdown_is_requested(
    runner: Runner, arguments: dict[str, Any]
) -> None:
    outcome = await fetched(runner, PAGE.encode(), **arguments)
    assert (outcome.value["body"], "format" in outcome.value) == (PAGE, False)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ('{"html": "<b>1</b>",  "n": 1}', "application/json"),
        ("<b>no page</b>", "text/plain"),
        ("<rss><b>1</b></rss>", "application/xml"),
        ("<b>1</b>", ""),
    ],
)
async def test_content_that_is_not_html_is_returned_unchanged(
    runner: Runner, body: str, content_type: str
) -> None:
    outcome = await fetched(runner, body.encode(), content_type, format="markdown")
    assert (outcome.value["body"], "format" in outcome.value) == (body, False)


@pytest.mark.parametrize(
    ("body", "content_type", "markdown"),
    [
        ("<p>é</p>".encode("latin-1"), "text/html; charset=iso-8859-1", "é\n"),
        ('<meta charset="windows-1252"><p>é€</p>'.encode("cp1252"), "text/html", "é€\n"),
        (b"<p>\xff</p>", "text/html; charset=nonsense", "\ufffd\n"),
        ("<!DOCTYPE html><p>é</p>".encode(), "", "é\n"),
        (b"<p>a\x00b</p>", "application/xhtml+xml", "ab\n"),
    ],
)
async def test_a_page_is_decoded_before_it_is_converted(
    runner: Runner, body: bytes, content_type: str, markdown: str
) -> None:
    outcome = await fetched(runner, body, content_type, format="markdown")
    assert outcome.value["body"] == markdown


async def test_an_unknown_format_is_an_invalid_argument(runner: Runner) -> None:
    outcome = await runner.call("web_fetch", url="http://site.example/", format="pdf")
    assert outcome.error_kind == "invalid_arguments"


async def test_long_markdown_is_cut_and_stored_in_the_workspace(runner: Runner) -> None:
    rows = "".join(f"<tr><td>{row}</td><td><a href='/{row}'>link</a></td></tr>" for row in range(10_000))
    outcome = await fetched(runner, f"<table>{rows}</table>".encode(), format="markdown")
    kept = runner.workspace.directory / str(outcome.value["full_output_path"])
    assert (len(str(outcome.value["body"])) <= 10_000, outcome.value["truncated"]) == (True, True)
    assert "| 9999 | [link](http://site.example:" in kept.read_text()


HOSTILE = {
    "nested divs": "<div>" * 20_000 + "deep" + "</div>" * 20_000,
    "nested lists": "<ul><li>" * 60_000 + "deep",
    "nested tables": "<table><tr><td>" * 5_000 + "deep",
    "nested formatting": "<b><i><u><s>" * 8_000 + "<p>deep" * 2_000,
    "huge spans": "<table>" + "<tr><td colspan=1000 rowspan=1000>x" * 2_000,
    "many attributes": "<a " + " ".join(f"a{n}=1" for n in range(100_000)) + ">x</a>",
    "entities": "&amp;" * 200_000,
    "unclosed": "<p><a href='" * 5_000,
    "nothing": "",
}


@pytest.mark.parametrize("page", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_page_becomes_markdown_or_is_returned_unchanged(runner: Runner, page: str) -> None:
    outcome = await fetched(runner, page.encode(), format="markdown")
    assert outcome.error_kind is None
    shown = outcome.value["body"]
    assert outcome.value.get("format") == "markdown" or shown == page[:10_000]


async def test_note_states_that_a_page_is_nested_too_deeply(runner: Runner) -> None:
    deep = "<p>top</p>" + "<div>" * 3_000 + "deep"
    outcome = await fetched(runner, deep.encode(), format="markdown")
    assert outcome.value["body"] == "top\n"
    assert "depth limit" in str(outcome.value["note"])
    only_deep = "<div>" * 3_000 + "deep"
    outcome = await fetched(runner, only_deep.encode(), format="markdown")
    assert (outcome.value["body"], "returned unchanged" in str(outcome.value["note"])) == (
        only_deep[:10_000],
        True,
    )


SLOW = "<a href=x><b>" * 100_000


@pytest.mark.parametrize(
    ("markdown", "page", "reason"),
    [
        (MarkdownLimits(timeout_s=0.3), SLOW, "longer than 0.3 s"),
        (MarkdownLimits(timeout_s=50, cpu_s=1), SLOW, "processor time"),
        (MarkdownLimits(timeout_s=50, max_markdown_bytes=100), "<p>x</p>" * 1000, "longer than 100 bytes"),
        (MarkdownLimits(timeout_s=50, memory_bytes=64 * 1024 * 1024), "<p>x</p>" * 260_000, "memory"),
    ],
)
async def test_page_above_the_limits_is_returned_unchanged_with_a_note(
    runner: Runner, markdown: MarkdownLimits, page: str, reason: str
) -> None:
    outcome = await fetched(runner, page.encode(), limits=markdown, format="markdown")
    assert (outcome.error_kind, outcome.value["success"]) == (None, True)
    assert outcome.value["body"] == page[:10_000]
    assert reason in str(outcome.value["note"])


async def test_a_cancelled_conversion_leaves_no_process(runner: Runner) -> None:
    stop = Stop()

    async def cancel_when_it_runs() -> None:
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while not any(map(is_converter, processes.children(os.getpid()))):
                await asyncio.to_thread(time.sleep, 0.01)
        stop.request("cancelled")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cancel_when_it_runs())
        outcome = await fetched(runner, SLOW.encode(), stop=stop, format="markdown")
    assert outcome.error_kind == "cancelled"
    assert not any(map(is_converter, processes.children(os.getpid())))


def is_converter(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as command:
            return converter_process.__file__.encode() in command.read()
    except OSError:
        return False


ESCAPES = {
    "open a file": "open('/etc/passwd')",
    "make a file": "open('/tmp/banksman-escape', 'w')",
    "list a directory": "os.listdir('/')",
    "open a socket": "socket.socket()",
    "open a unix socket": "socket.socketpair()",
    "fork": "os.fork()",
    "execute": "os.execv('/bin/true', ['true'])",
    "kill": "os.kill(os.getppid(), 0)",
    "duplicate a descriptor": "os.dup(1)",
    "make executable memory": "mmap.mmap(-1, 4096, prot=7)",
    "become root": "os.setuid(0)",
}

TRIAL = """
import json, mmap, os, resource, socket, sys, threading
from banksman.tool_runner.tools.converter_process import confine
order, escape = json.loads(sys.argv[1]), compile(sys.argv[2], "escape", "exec")
begin = threading.Event()

def attempt():
    begin.wait()
    try:
        exec(escape)
    except PermissionError:
        os._exit(7)
    except OSError:
        os._exit(8)
    os._exit(0)

if sys.argv[3] == "thread":
    thread = threading.Thread(target=attempt)
    thread.start()
confine(order)
begin.set()
if sys.argv[3] == "thread of an image":
    thread = threading.Thread(target=attempt)
    thread.start()
thread.join() if "thread" in sys.argv[3] else attempt()
"""


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
@pytest.mark.parametrize("where", ["program", "thread", "thread of an image"])
def test_compromised_converter_has_only_its_pipes(runner: Runner, escape: str, where: str) -> None:
    """Also in a thread that a library has started before, and in one that it may start for an image."""
    task: converter_process.Task = "image" if where == "thread of an image" else "markdown"
    order = converter_process.Order(
        task=task,
        option="",
        max_bytes=0,
        filter=base64.b64encode(converter_filter(threads=task == "image")).decode(),
        user=[runner.identity.uid, runner.identity.gid] if runner.identity.switches else [],
        memory_bytes=256 * 1024 * 1024,
        cpu_s=5,
    )
    command = [sys.executable, "-c", TRIAL, json.dumps(order), escape, where]
    ended = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert ended.returncode == 7, ended.stderr.decode()
