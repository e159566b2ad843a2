"""Where a workspace is, which copies of it are kept, and what a runner and the platform tell each other."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from banksman.contracts.assistant_files import AssistantFile
from banksman.contracts.wire import Stored, Timestamp, Token

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 in hexadecimal."""


class SnapshotRef(Stored):
    """Names a stored copy of a workspace, exactly."""

    id: Token
    manifest_digest: Digest
    """Of the manifest's bytes: whoever restores knows that it has what was recorded."""
    created_at: Timestamp
    """When the files were read."""
    size: int = 0
    """Bytes in the object store."""


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
    """The state that it holds, in the words of `WorkspaceOwner`."""
    parts: tuple[SnapshotPart, ...]
    """In order; together they are one tar archive compressed with zstd."""
    files: int
    """Entries of the archive."""
    size: int
    """Bytes of the files, uncompressed."""


class WorkspaceLoss(Stored):
    """Changes that did not come along when a workspace moved."""

    term: int
    """The term that began with the loss."""
    snapshot_ts: Timestamp | None
    """When the copy was made that it was restored from; None when it began empty."""
    reason: str | None = None
    """Why an existing copy was not restored; None when it was, or there was none."""


class WorkspaceOwner(Stored):
    """KV `owners`: where a workspace is."""

    runner: Token
    runner_epoch: int
    term: int = 1
    """One higher each time another runner gets the workspace: a directory of an earlier term is stale."""
    generation: int = 0
    """One higher each time an unchanged workspace begins to change."""
    dirty: bool = False
    """Whether it may have changed since `snapshot`: such a workspace waits for its runner."""
    snapshot: SnapshotRef | None = None
    """What another runner restores; None for a workspace that begins empty."""
    gone_since: Timestamp | None = None
    """Since when a changed workspace waits for its runner."""
    loss: WorkspaceLoss | None = None
    """The last loss; each log tells it once."""
    assistant: Token | None = None
    """Whose files it starts with; None when there are none."""
    assistant_revision: int = 0
    """Of that assistant."""
    deleted: bool = False
    """The conversation is gone: whoever has files of it removes them."""


class WorkspacePlacement(Stored):
    """What a runner must know of a workspace before it uses it."""

    term: int = 1
    generation: int = 0
    snapshot: SnapshotRef | None = None


class WorkspaceReport(Stored):
    """`workspace.report.{r}.{t}.{c}`: a runner tells what became of a workspace, or asks whose it is."""

    v: Literal[1] = 1
    runner_epoch: int
    term: int
    """Of the directory; 0 when the runner has none."""
    generation: int = 0
    """The state of the workspace that this is about."""
    begins: bool = False
    """Whether the workspace begins to change, with this generation; nothing changes before the answer."""
    snapshot: SnapshotRef | None = None
    """A copy that is stored now; None when there is nothing new."""
    complete: bool = False
    """Whether `snapshot` holds every change; the next one begins with another generation."""
    lost: str | None = None
    """Why the copy could not be restored, so that the workspace began empty."""
    starts: bool = False
    """Whether the workspace is about to be made: asks for the files that it starts with."""
    missing: bool = False
    """Whether the runner has no files of this term: what it changed in it was on a volume that is gone."""


class WorkspaceReportReply(Stored):
    """The answer to a `WorkspaceReport`."""

    mine: bool
    """False when the files are of an earlier term, or of a deleted conversation: remove them. True also when
    nothing is known of the workspace: what may be the only copy is never removed."""
    known: bool = True
    """Whether anything is known of the workspace."""
    generation: int = 0
    dirty: bool = True
    snapshot: SnapshotRef | None = None
    """The copy that counts; any other may be removed."""
    files: tuple[AssistantFile, ...] = ()
    """What the workspace starts with, when that was asked."""


class WorkspaceForget(Stored):
    """`file.{r}.{t}.{c}`: remove the workspace of a deleted conversation, and its copies."""

    op: Literal["forget"] = "forget"
    snapshot: SnapshotRef | None = None
