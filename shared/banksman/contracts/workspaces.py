"""Placements and snapshots of workspaces, and the reports of runners about them."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from banksman.contracts.assistant_files import AssistantFile
from banksman.contracts.wire import Stored, Timestamp, Token

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
    """Number of entries in the archive."""
    size: int
    """Uncompressed size of the files in bytes."""
    sealed: bool = Field(default=False, exclude_if=lambda sealed: not sealed)
    """Whether the parts are encrypted, with the key of the reference."""


class WorkspaceLoss(Stored):
    """Changes that may be lost because a workspace moved to another runner."""

    term: int
    """The term that began with the loss."""
    snapshot_ts: Timestamp | None
    """When the restored snapshot was made; None if the workspace started empty."""
    reason: str | None = None
    """Why an existing snapshot was not restored; None if it was restored or there was none."""


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
    """Revision of that assistant."""
    deleted: bool = False
    """True if the conversation was deleted. A runner with files of it removes them."""


class WorkspacePlacement(Stored):
    """The state of a workspace that a runner must compare with its directory before it uses it."""

    term: int = 1
    generation: int = 0
    snapshot: SnapshotRef | None = None


class WorkspaceReport(Stored):
    """`workspace.report.{r}.{t}.{c}`: a runner reports a change of a workspace, or queries its placement."""

    v: Literal[1] = 1
    runner_epoch: int
    term: int
    """Term of the runner's directory; 0 if it has none."""
    generation: int = 0
    """The generation that the report concerns."""
    begins: bool = False
    """True if the workspace is about to change, with this generation. The runner awaits the reply."""
    snapshot: SnapshotRef | None = None
    """A newly stored snapshot; None if there is no new one."""
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
