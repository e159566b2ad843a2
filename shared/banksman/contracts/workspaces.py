"""Workspaces: their initial files, placements and snapshots, and the reports of runners about them."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from banksman.contracts.processes import MAX_PROCESSES, KnownProcess
from banksman.contracts.urls import HttpUrl, parse_url, url_matches
from banksman.contracts.wire import Stored, Timestamp, Token

MAX_FILES = 100
MAX_FILES_BYTES = 256 * 1024
"""Maximum bytes of JSON of all files of an assistant. They share a message of at most 1 MiB with it."""
MAX_PATH_CHARS, MAX_NAME_BYTES, MAX_PARTS = 512, 255, 16
RESERVED_PREFIX = ".banksman-"
"""Prefix of the names that the tool-runner reserves for files that it is still writing."""
IMAGES_DIRECTORY = ".banksman/images"
"""Where a runner keeps the images that a model has seen. Their names are digests."""


def _checked_path(path: str) -> str:
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise ValueError("must be a path relative to the workspace, without empty parts, '.' and '..'")
    if len(parts) > MAX_PARTS or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise ValueError(f"must have at most {MAX_PARTS} parts of at most {MAX_NAME_BYTES} bytes each")
    if any(part.startswith(RESERVED_PREFIX) for part in parts):
        raise ValueError(f"must have no name that begins with {RESERVED_PREFIX!r}, which is reserved")
    return path


class AssistantFile(Stored):
    """One initial file of a workspace."""

    path: Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARS), AfterValidator(_checked_path)]
    """Path relative to the workspace, with `/` between its parts."""
    encoding: Literal["utf-8", "base64"] = "utf-8"
    """How `content` encodes the file's bytes."""
    executable: bool = False
    content: str | None = None
    """The content in this encoding; None in lists of assistants, which omit contents."""

    @field_validator("content")
    @classmethod
    def _decodes(cls, content: str | None, info: ValidationInfo) -> str | None:
        if content is not None and info.data.get("encoding") == "base64":
            try:
                base64.b64decode(content, validate=True)
            except binascii.Error as error:
                raise ValueError(f"must be base64 with padding ({error})") from error
        return content

    @property
    def data(self) -> bytes:
        """The file's bytes."""
        content = self.content or ""
        return base64.b64decode(content) if self.encoding == "base64" else content.encode()


def _checked_set(files: tuple[AssistantFile, ...]) -> tuple[AssistantFile, ...]:
    paths = {file.path for file in files}
    if len(paths) < len(files):
        raise ValueError("must contain each path once")
    if both := sorted(path for path in paths if any(above in paths for above in _above(path))):
        raise ValueError(f"must not contain {both[0]!r} below another file: a file is not a directory")
    return files


def _above(path: str) -> list[str]:
    """Return the directories above a path, outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _checked_contents(files: tuple[AssistantFile, ...]) -> tuple[AssistantFile, ...]:
    for file in files:
        if file.content is None:
            raise ValueError(
                f"must contain the content of {file.path!r}; lists of assistants omit it, `read` returns it"
            )
    size = sum(len(file.model_dump_json().encode()) for file in files)
    if size > MAX_FILES_BYTES:
        raise ValueError(f"must have at most {MAX_FILES_BYTES} bytes of JSON in total, not {size}")
    return files


AssistantFiles = Annotated[
    tuple[AssistantFile, ...], Field(max_length=MAX_FILES), AfterValidator(_checked_set)
]
"""Files with distinct paths, none below another."""

SubmittedFiles = Annotated[AssistantFiles, AfterValidator(_checked_contents)]
"""Files in a client's request: with contents, at most `MAX_FILES_BYTES` in total."""


def _checked_branch(branch: str) -> str:
    # https://git-scm.com/docs/git-check-ref-format
    if ".." in branch or "//" in branch or branch.endswith((".lock", "/", ".")):
        raise ValueError("must be the name of a branch")
    return branch


REPOSITORY: Final = "repository"
"""What a secret for repositories must name if it names servers."""


ARCHIVES: Final = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
"""Ends of the paths of archives."""


class RepositorySource(Stored):
    """A git repository, without submodules and files of Git LFS, or an archive: where a workspace starts."""

    repository: Annotated[HttpUrl, Field(max_length=2000)]
    """Its address with http or https, without user and password. A path that ends with `.zip`, `.tar`,
    `.tgz`, `.tar.gz`, `.tar.bz2` or `.tar.xz` is that of an archive, which has no branch and depth."""
    branch: (
        Annotated[
            str,
            Field(max_length=200, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$"),
            AfterValidator(_checked_branch),
        ]
        | None
    ) = None
    """None for the default branch."""
    depth: int = Field(default=1, ge=0, le=100_000)
    """The number of commits of its history; 0 for all."""
    secret: Token | None = None
    """The tenant's secret with a token, or with user and password separated by a colon. A secret that names
    servers must name `repository`."""

    @property
    def is_archive(self) -> bool:
        """Whether the address is that of an archive."""
        return parse_url(self.repository).target.partition("?")[0].lower().endswith(ARCHIVES)


EVERY_TENANT: Final = "*"
Patterns = tuple[str, ...]


class WorkspaceOffer(Stored):
    """What the operator of a runner lets workspaces use."""

    toolchains: tuple[Token, ...] = Field(default=(), exclude_if=lambda names: not names)
    repositories: dict[str, Patterns] = Field(
        default_factory=dict[str, Patterns], exclude_if=lambda tenants: not tenants
    )
    """Patterns of addresses of git repositories by tenant; those of `EVERY_TENANT` are for all."""
    registries: Patterns = Field(default=(), exclude_if=lambda hosts: not hosts)
    """Hosts of package registries that the policy of a tenant may name."""

    def repositories_of(self, tenant: str) -> Patterns:
        """Return the patterns for a tenant."""
        return (*self.repositories.get(EVERY_TENANT, ()), *self.repositories.get(tenant, ()))


def is_allowed(repository: str, patterns: Patterns) -> bool:
    """Return whether the address of a repository matches a pattern; raise `UrlRefused` for no address."""
    url = parse_url(repository)
    return any(url_matches(url, pattern) for pattern in patterns)


class RepositoryAccess(Stored):
    """A repository with what its server requires, for the runner that creates the workspace."""

    source: RepositorySource
    credentials: str | None = Field(default=None, repr=False)
    problem: str | None = None
    """Why the secret cannot be used; None if it can."""


OWN_SHARE: Final = 0.75
"""Maximum share of an object store that runners fill. Agents remove objects above four fifths."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""32 bytes in hexadecimal: a SHA-256."""


class SnapshotRef(Stored):
    """A reference to one stored snapshot of a workspace."""

    id: Token
    manifest_digest: Digest
    """Digest of the manifest's bytes. A runner verifies it before it restores the snapshot."""
    created_at: Timestamp
    """When the files were read."""
    size: int = 0
    """Bytes in the object store."""
    key: Digest | None = Field(default=None, repr=False, exclude_if=lambda key: key is None)
    """The key of its parts in hexadecimal; None in a reply to a runner that does not have the workspace."""
    stored_by: Token
    """The runner that owns its objects."""


class SnapshotPart(Stored):
    """One object of a snapshot."""

    size: int
    """Bytes."""
    digest: Digest


class SnapshotManifest(Stored):
    """The description of a snapshot, stored after its parts."""

    v: Literal[1] = 1
    tenant: Token
    conversation_id: Token
    id: Token
    created_at: Timestamp
    term: int
    generation: int
    """The state of the workspace in the snapshot; see `WorkspaceOwner.generation`."""
    parts: tuple[SnapshotPart, ...]
    """The parts in order. Decrypted and concatenated, they are one tar archive compressed with zstd."""
    files: int
    size: int
    """Uncompressed size of the files in bytes."""
    sealed: bool = Field(default=False, exclude_if=lambda sealed: not sealed)
    """Whether the parts are encrypted, with the key of the reference."""


class WorkspaceLoss(Stored):
    """Changes that may be lost because a workspace moved to another runner."""

    term: int
    snapshot_ts: Timestamp | None
    """When the restored snapshot was made; None if the workspace started empty."""
    reason: str | None = None
    """Why an existing snapshot was not restored; None if it was restored or there was none."""


KnownProcesses = Annotated[
    tuple[KnownProcess, ...], Field(max_length=MAX_PROCESSES, exclude_if=lambda processes: not processes)
]


class WorkspaceOwner(Stored):
    """KV `owners`: the placement of a workspace."""

    runner: Token
    runner_epoch: int
    term: int = 1
    """Increases when another runner gets the workspace. A directory of an earlier term is stale."""
    generation: int = 0
    """Increases when an unchanged workspace begins to change."""
    dirty: bool = False
    """True if it may have changed since `snapshot`. A dirty workspace waits for its runner first."""
    snapshot: SnapshotRef | None = None
    """The snapshot that another runner restores; None for a workspace that starts empty."""
    gone_since: Timestamp | None = None
    """Time since which a dirty workspace waits for its runner; None if its runner is live."""
    loss: WorkspaceLoss | None = None
    """The last loss. Each log records it once."""
    assistant: Token | None = None
    """The assistant with the workspace's initial files; None if it has no files."""
    assistant_revision: int = 0
    deleted: bool = False
    """True if the conversation was deleted. A runner with files of it removes them."""
    processes: KnownProcesses = ()
    """Processes that the model takes for running. One that no longer runs is named in the next result."""


class WorkspacePlacement(Stored):
    """The state of a workspace that a runner must compare with its directory before it uses it."""

    term: int = 1
    generation: int = 0
    snapshot: SnapshotRef | None = None
    processes: KnownProcesses = ()


class PlacedRequest(Stored):
    """A request to a runner, with the state of the workspace that the sender knows."""

    place: WorkspacePlacement = WorkspacePlacement()


class WorkspaceReport(Stored):
    """`workspace.report.{r}.{t}.{c}`: a runner reports a change of a workspace, or queries its placement."""

    v: Literal[1] = 1
    runner_epoch: int
    term: int
    """Term of the runner's directory; 0 if it has none."""
    generation: int = 0
    begins: bool = False
    """True if the workspace is about to change, with this generation. The runner awaits the reply."""
    snapshot: SnapshotRef | None = None
    complete: bool = False
    """True if `snapshot` contains every change. The next change begins another generation."""
    lost: str | None = None
    """Why the snapshot could not be restored, so that the workspace started empty; otherwise None."""
    starts: bool = False
    """True if the workspace is about to be created. The reply contains its initial files."""
    missing: bool = False
    """True if the runner has no files of this term, because the volume with the changes was lost."""
    missing_at: int | None = None
    """The generation at which the files were missing; None unless `missing`. The report has no effect after a
    later change began."""
    processes: tuple[KnownProcess, ...] | None = Field(
        default=None, max_length=MAX_PROCESSES, exclude_if=lambda processes: processes is None
    )
    """The processes that the model takes for running; None if they have not changed."""


class WorkspaceReportReply(Stored):
    """The reply to a `WorkspaceReport`."""

    mine: bool
    """False if the files are of an earlier term or of a deleted conversation; the runner removes them.
    True if the workspace is unknown, because no other files may exist."""
    known: bool = True
    """False if KV `owners` has no entry for the workspace."""
    generation: int = 0
    dirty: bool = True
    snapshot: SnapshotRef | None = None
    """The current snapshot. The runner may remove all others."""
    files: tuple[AssistantFile, ...] = ()
    """The initial files of the workspace, if the report had `starts`."""
    repository: RepositoryAccess | None = Field(default=None, exclude_if=lambda found: found is None)
    """The repository from which it starts, if the report had `starts`."""


class ObjectRemoval(Stored):
    """`object.remove.{r}`: remove an object that this runner stored, and those below its name."""

    v: Literal[1] = 1
    store: Literal["outputs", "workspaces"]
    name: str = Field(max_length=300)


class ObjectRemovalReply(Stored):
    """The reply to an `ObjectRemoval`, which is safe to repeat."""

    removed: Literal[True]


class WorkspaceForget(Stored):
    """`file.{r}.{t}.{c}`: remove the workspace of a deleted conversation and its snapshots."""

    op: Literal["forget"] = "forget"
    snapshot: SnapshotRef | None = None


class WorkspaceRestored(Stored):
    """The workspace was rebuilt on another runner, and changes may be missing."""

    type: Literal["workspace.restored"] = "workspace.restored"
    snapshot_ts: Timestamp | None
    """When the snapshot was made; None if the workspace starts empty."""
    lost_calls: tuple[str, ...]
    """Ids of the calls whose changes may be missing."""
    term: int = 0
    """The placement term that began with this loss. Each log records a loss once."""
    reason: str | None = None
    """Why an existing snapshot was not restored; None if it was restored or there was none."""
