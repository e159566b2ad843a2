"""The files of the web page: media types, policies, caching, and no other host."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast
from urllib.parse import urljoin

import httpx
import pytest
from fastapi import FastAPI

from banksman.contracts.registry import category_of
from banksman.gateway.app import DEMO_NOTICE
from banksman.gateway.interfaces.page.routes import IMMUTABLE, routes
from banksman.workflows.builtin import BUILTIN
from tests.e2e.catalogues import STATIC, catalogues
from tests.support.paths import ROOT
from tests.support.timeouts import WAIT_TIMEOUT_S

OWN_FILES = sorted(path for path in STATIC.rglob("*") if path.is_file() and "vendor" not in path.parts)
OWN_MODULES = [path for path in OWN_FILES if path.suffix == ".mjs"]
CATEGORIES = ("project", "code", "research", "conversation", "workspace", "web")
BY_WORKFLOWS = (*{workflow.definition.category for workflow in BUILTIN}, "general")
INLINE_SCRIPT = re.compile(r"<script(?: type=.importmap.)?>(.*?)</script>", re.DOTALL)
IMPORT_MAP = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)
IMPORT = re.compile(r"(?<![.\w])(?:from|import)\s*\(?'([^'\n]+\.m?js|[^'.\n]+)'")
STATIC_IMPORT = re.compile(r"^(?:import|} from)[^(;]*'([^']+)';$", re.MULTILINE)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(routes)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
        yield client


def import_map(page: str) -> dict[str, str]:
    found = IMPORT_MAP.search(page)
    assert found is not None
    parsed = cast(dict[str, dict[str, str]], json.loads(found.group(1)))
    return parsed["imports"]


async def test_the_page_allows_no_inline_script_except_its_own_two(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    policy = page.headers["content-security-policy"]
    scripts = INLINE_SCRIPT.findall(page.text)
    allowed = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert len(allowed) == 2
    assert f"script-src 'self' 'sha256-{allowed[0]}' 'sha256-{allowed[1]}';" in policy
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


async def test_the_frame_that_draws_diagrams_is_sandboxed(client: httpx.AsyncClient) -> None:
    policy = (await client.get("/static/diagram.html")).headers["content-security-policy"]
    assert "sandbox allow-scripts" in policy
    assert "allow-same-origin" not in policy
    assert "script-src 'self';" in policy


async def test_every_import_of_the_page_is_served_as_a_script(client: httpx.AsyncClient) -> None:
    page = (await client.get("/")).text
    imports = import_map(page)
    targets = {urljoin("http://page/", target) for target in imports.values()}
    targets.add("http://page/static/main.mjs")
    for module in OWN_MODULES:
        address = f"http://page/static/{module.relative_to(STATIC).as_posix()}"
        for name in IMPORT.findall(module.read_text(encoding="utf-8")):
            assert name in imports or name.startswith("."), f"{module.name} imports {name}"
            targets.add(urljoin(address, imports.get(name, name)) if name.startswith(".") else address)
    for target in sorted(targets):
        response = await client.head(target)
        assert response.status_code == 200, target
        assert response.headers["content-type"].startswith("text/javascript"), target


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/static/main.mjs", "text/javascript; charset=utf-8"),
        ("/static/styles/tokens.css", "text/css; charset=utf-8"),
        ("/static/favicon.svg", "image/svg+xml"),
        ("/static/vendor/fontsource-variable-inter/inter-latin.woff2", "font/woff2"),
    ],
)
async def test_each_file_has_its_type_and_is_not_sniffed(
    client: httpx.AsyncClient, path: str, media_type: str
) -> None:
    response = await client.get(path)
    assert response.headers["content-type"] == media_type
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_an_unchanged_file_is_not_sent_again(client: httpx.AsyncClient) -> None:
    first = await client.get("/static/main.mjs")
    again = await client.get("/static/main.mjs", headers={"if-none-match": first.headers["etag"]})
    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")


async def test_the_page_names_files_that_a_browser_stores_for_a_year(client: httpx.AsyncClient) -> None:
    """R38: their address changes with the files; the page itself and the sources are revalidated."""
    page = await client.get("/")
    assert page.headers["cache-control"] == "no-cache"
    addresses = set(re.findall(r"static/[^\"]+", page.text))
    folders = {address.split("/")[1] for address in addresses}
    assert len(folders) == 1
    for address in sorted(addresses):
        response = await client.get(f"/{address}")
        assert (response.status_code, response.headers["cache-control"]) == (200, IMMUTABLE), address


async def test_a_file_of_another_version_is_not_stored(client: httpx.AsyncClient) -> None:
    """Two gateways may serve one page during an update."""
    response = await client.get("/static/v000000000000/main.mjs")
    assert (response.status_code, response.headers["cache-control"]) == (200, "no-cache")


async def test_the_page_lists_every_module_of_its_start(client: httpx.AsyncClient) -> None:
    """R38: a module that is missing would cost a round trip for each level of imports."""
    page = (await client.get("/")).text
    listed = re.findall(r'<link rel="modulepreload" href="static/v\w+/([^"]+)"', page)
    imports = import_map(page)
    for path in [path for path in listed if not path.startswith("vendor/")]:
        for name in STATIC_IMPORT.findall((STATIC / path).read_text(encoding="utf-8")):
            at = f"http://page/static/{path}"
            found = imports[name].partition("static/")[2].partition("/")[2] if name in imports else ""
            assert (found or urljoin(at, name).removeprefix("http://page/static/")) in listed
    assert len(listed) <= 53
    assert not [path for path in listed if "highlight" in path or "purify" in path]


async def test_a_client_that_takes_gzip_gets_the_same_text(client: httpx.AsyncClient) -> None:
    packed = await client.get("/static/events.mjs", headers={"accept-encoding": "gzip"})
    plain = await client.get("/static/events.mjs", headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.text == plain.text


@pytest.mark.parametrize(
    "path", ["/static/", "/static/nothing.mjs", "/static/..%2fpage.py", "/static/%2e%2e/page.py"]
)
async def test_only_files_of_the_page_are_served(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 404


@pytest.mark.parametrize("path", OWN_FILES, ids=lambda path: path.name)
def test_no_file_of_the_page_names_another_host(path: Path) -> None:
    addresses = set(re.findall(r"https?://[\w.-]+", path.read_text(encoding="utf-8")))
    assert addresses <= {"http://www.w3.org"}


def test_the_page_has_the_sentence_that_gateways_send_about_the_demo_model() -> None:
    """R38: it is shown in the language of the page, which finds it by its English text."""
    assert catalogues()["en"]["notice.demo"] == DEMO_NOTICE


def test_the_page_has_the_texts_of_every_category_and_workflow_of_the_platform() -> None:
    """R27, R38: it shows them in its language if they are the English ones of its catalogue."""
    named = {f"category.{name}": category_of(name).title for name in BY_WORKFLOWS}
    for workflow in BUILTIN:
        key = f"builtin.{workflow.definition.name}"
        named |= {key: workflow.definition.title, f"{key}.about": workflow.definition.description}
        for name, field in cast(
            dict[str, dict[str, str]], workflow.definition.parameters_schema["properties"]
        ).items():
            named[f"{key}.{name}"] = field["description"]

    texts = catalogues()["en"]
    assert {key: texts.get(key) for key in named} == named


def test_the_page_has_the_icon_of_every_category() -> None:
    """R41; a category that names another icon gets one that stands for any workflow."""
    drawn = (STATIC / "components/icons.mjs").read_text()
    categories = [category_of(name) for name in CATEGORIES]
    named = {category.name: category.icon for category in categories if category.icon}

    assert named.keys() == set(CATEGORIES)
    assert [
        icon for icon in named.values() if not re.search(rf"^  '?{icon}'?: 'M", drawn, re.MULTILINE)
    ] == []


def test_the_vendored_files_are_the_recorded_ones() -> None:
    command = [sys.executable, str(ROOT / "tools/vendor_web.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_vendored_package_carries_its_licence() -> None:
    manifest = json.loads((STATIC / "vendor/vendor.json").read_text(encoding="utf-8"))
    folders = {path.partition("/")[0] for path in manifest["sha256"]}
    assert len(folders) == len(manifest["packages"])
    assert all((STATIC / "vendor" / folder / "LICENSE").stat().st_size > 0 for folder in folders)
