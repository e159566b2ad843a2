"""API keys that `banksman keys create` writes into the file of a running gateway."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import GatewayFactory, Served
from tests.support.timeouts import WAIT_TIMEOUT_S

LISTING = "/context/conversations"


async def keys(file: Path, *arguments: str) -> tuple[int | None, dict[str, Any]]:
    """Run `banksman keys` for a file; return its exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "banksman.cli", "keys", *arguments, "--json"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "BANKSMAN_GATEWAY__KEYS_FILE": str(file)},
    )
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        printed, _ = await process.communicate()
    return process.returncode, json.loads(printed)


async def status(gateway: Served, key: str | None = None) -> int:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with gateway.http as http:
        return (await http.get(LISTING, headers=headers)).status_code


async def test_a_colleagues_key_opens_the_gateway_at_once_and_closes_it_for_everyone_else(
    start_gateway: GatewayFactory, tenant: str, tmp_path: Path
) -> None:
    """The key is printed once; the file has its digest only. A removed key is refused at once."""
    file = tmp_path / "keys" / "api-keys.json"
    async with start_gateway(keys_file=file) as gateway:
        before = await status(gateway)
        code, created = await keys(file, "create", "ann", "--tenant", tenant)
        ann, without = await status(gateway, created["key"]), await status(gateway)
        stored, mode = file.read_text(), file.stat().st_mode & 0o777
        again, refused = await keys(file, "create", "ann")
        await keys(file, "create", "bob", "--tenant", tenant)
        await keys(file, "rm", "ann")
        removed = await status(gateway, created["key"])

    assert (before, code, ann, without, removed) == (200, 0, 200, 401, 401)
    assert (created["key"] in stored, mode) == (False, 0o600)
    assert (again, refused["error"]["code"]) == (2, "conflict")


async def test_a_key_of_the_file_has_the_rights_and_the_expiry_that_its_creator_named(
    start_gateway: GatewayFactory, tenant: str, tmp_path: Path
) -> None:
    """Without `--right` a key may chat and approve, as the keys of earlier versions."""
    file = tmp_path / "api-keys.json"
    options = ("--right", "admin", "--expires-days", "1")
    _, admin = await keys(file, "create", "ann", "--tenant", tenant, *options)
    _, plain = await keys(file, "create", "bob", "--tenant", tenant)
    code, refused = await keys(file, "create", "eve", "--right", "root")
    stored = json.loads(file.read_text())
    async with start_gateway(keys_file=file) as gateway, gateway.http as http:
        statuses = [
            (await http.get(path, headers={"authorization": f"Bearer {key['key']}"})).status_code
            for key in (admin, plain)
            for path in (LISTING, "/context/keys")
        ]
    assert statuses == [403, 200, 200, 403]
    assert [bool(key["expires_at"]) for key in stored] == [True, False]
    assert (code, refused["error"]["code"]) == (2, "bad_request")


async def test_a_damaged_file_of_keys_does_not_open_the_gateway(
    start_gateway: GatewayFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "api-keys.json"
    file.write_text('[{"user": "ann"')
    async with start_gateway(keys_file=file) as gateway:
        assert await status(gateway) == 401
    assert "the file of API keys cannot be read" in caplog.text
