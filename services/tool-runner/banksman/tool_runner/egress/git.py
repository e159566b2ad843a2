"""Fetches one branch of a git repository over HTTP, as a pack that a sandbox unpacks, or an archive.

The protocol is version 0 of https://git-scm.com/docs/gitprotocol-http and
https://git-scm.com/docs/gitprotocol-pack. No text of the server is part of an error: it may repeat the
credentials.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import BinaryIO

import httpcore

from banksman.contracts.urls import Url, parse_url
from banksman.contracts.workspaces import RepositorySource
from banksman.tool_runner.egress.client import Egress, FetchFailed, Request, header

MAX_REFS_BYTES = 8 * 1024 * 1024
_OK = 200
_MAX_REDIRECTS = 5
_SERVICE = "git-upload-pack"
_HEADS = "refs/heads/"
_PACK, _ERROR = 1, 3
"""Bands of the response: https://git-scm.com/docs/gitprotocol-pack#_packfile_data."""


@dataclass(frozen=True, slots=True)
class FetchedBranch:
    branch: str
    commit: str
    shallow: tuple[str, ...]
    """The commits whose parents were not fetched."""


async def fetch_branch(
    egress: Egress, source: RepositorySource, credentials: str | None, target: BinaryIO, max_bytes: int
) -> FetchedBranch:
    """Write the pack of a branch to `target`.

    Raises:
        FetchFailed: the server refuses, or sends no such branch or more than `max_bytes`.
        UrlRefused: the address is not allowed.
    """
    base = source.repository.rstrip("/")
    headers = headers_for(egress, parse_url(base), credentials)
    listing = Request("GET", f"{base}/info/refs?service={_SERVICE}", tuple(headers))
    async with egress.stream(listing) as response:
        branch, commit = await _chosen(_packets(response, "advertisement", MAX_REFS_BYTES), source.branch)
    depth = [f"deepen {source.depth}\n"] if source.depth else []
    wanted = [f"want {commit} side-band-64k ofs-delta no-progress shallow agent=banksman\n", *depth]
    body = "".join(map(_packet, wanted)) + "0000" + _packet("done\n")
    headers.append((b"Content-Type", f"application/x-{_SERVICE}-request".encode()))
    wants = Request("POST", f"{base}/{_SERVICE}", tuple(headers), body.encode())
    async with egress.stream(wants) as response:
        packets = _packets(response, "result", max_bytes)
        shallow: list[str] = []
        while (line := await packets.next()) != b"NAK\n":
            if line is not None and line.startswith(b"shallow "):
                shallow.append(_commit(line.removeprefix(b"shallow ")[:40]))
        while (line := await packets.next()) is not None:
            if line[:1] == bytes([_ERROR]):
                raise FetchFailed("the server reported an error")
            if line[:1] == bytes([_PACK]):
                target.write(line[1:])
    return FetchedBranch(branch, commit, tuple(shallow))


async def fetch_archive(
    egress: Egress,
    check: Callable[[str], None],
    source: RepositorySource,
    credentials: str | None,
    target: BinaryIO,
    max_bytes: int,
) -> None:
    """Write an archive to `target`. `check` raises `UrlRefused` for an address that is not allowed.

    Raises:
        FetchFailed: the server refuses, or sends more than `max_bytes`.
        UrlRefused: the address, or that of a redirect, is not allowed.
    """
    url = parse_url(source.repository)
    for _ in range(_MAX_REDIRECTS + 1):
        check(str(url))
        request = Request("GET", str(url), tuple(headers_for(egress, url, credentials)))
        async with egress.stream(request) as response:
            if not (location := header(response, b"location")):
                await _write(response, target, max_bytes)
                return
        # Only the server that the source names gets its secret.
        url, previous = url.join(location), url
        credentials = credentials if url.origin == previous.origin else None
    raise FetchFailed(f"the server redirects more than {_MAX_REDIRECTS} times")


async def _write(response: httpcore.Response, target: BinaryIO, max_bytes: int) -> None:
    _check_status(response)
    async for chunk in response.aiter_stream():
        target.write(chunk)
        if target.tell() > max_bytes:
            raise FetchFailed(f"the server sends more than {max_bytes} bytes")


def headers_for(egress: Egress, url: Url, credentials: str | None) -> list[tuple[bytes, bytes]]:
    headers = [(b"User-Agent", b"git/2.0 (banksman)"), (b"Accept-Encoding", b"identity")]
    if credentials is not None:
        if url.scheme != "https" and not egress.trusts(url):
            raise FetchFailed("a secret is sent over https only")
        pair = credentials if ":" in credentials else f"git:{credentials}"
        headers.append((b"Authorization", b"Basic " + base64.b64encode(pair.encode())))
    return headers


async def _chosen(packets: _Packets, wanted: str | None) -> tuple[str, str]:
    """Return name and commit of a branch: of the server's default branch if none is wanted."""
    await packets.next()
    commits: dict[str, str] = {}
    default = None
    while (line := await packets.next()) is not None or not commits:
        if line is None:
            continue
        reference, _, capabilities = line.rstrip(b"\n").partition(b"\0")
        commit, _, name = reference.decode("utf-8", "replace").partition(" ")
        commits[name] = commit
        for capability in capabilities.decode("utf-8", "replace").split():
            if capability.startswith(f"symref=HEAD:{_HEADS}"):
                default = capability.partition(_HEADS)[2]
    branch = wanted or default or "main"
    if (commit := commits.get(_HEADS + branch)) is None:
        raise FetchFailed(f"the repository has no branch {branch!r}")
    return branch, _commit(commit.encode())


def _commit(name: bytes) -> str:
    if len(name) != 40 or set(name) - set(b"0123456789abcdef"):
        raise FetchFailed("the server sent no valid commit")
    return name.decode()


def _packet(line: str) -> str:
    return f"{len(line) + 4:04x}{line}"


def _packets(response: httpcore.Response, kind: str, max_bytes: int) -> _Packets:
    expected = f"application/x-{_SERVICE}-{kind}"
    _check_status(response)
    if header(response, b"content-type") != expected:
        raise FetchFailed("the server sent no git repository")
    return _Packets(response.aiter_stream(), max_bytes)


def _check_status(response: httpcore.Response) -> None:
    if response.status != _OK:
        denied = response.status in (401, 403, 404)
        access = " (is the address right, and has the secret access?)" if denied else ""
        raise FetchFailed(f"the server responded with {response.status}{access}")


class _Packets:
    def __init__(self, chunks: AsyncIterator[bytes], max_bytes: int) -> None:
        self._chunks = aiter(chunks)
        self._buffer = bytearray()
        self._left = self._max_bytes = max_bytes

    async def next(self) -> bytes | None:
        """Return the content of the next packet; None for a packet that separates parts."""
        try:
            size = int(await self._take(4), 16)
        except ValueError as error:
            raise FetchFailed("the server's response is not valid") from error
        return await self._take(size - 4) if size >= 4 else None

    async def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            chunk = await anext(self._chunks, None)
            if chunk is None:
                raise FetchFailed("the server's response ended early")
            self._left -= len(chunk)
            if self._left < 0:
                raise FetchFailed(f"the server sends more than {self._max_bytes} bytes; give a smaller depth")
            self._buffer += chunk
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data
