"""`banksman reset`: delete everything that a system keeps."""

from __future__ import annotations

import shutil
from pathlib import Path

from banksman.cli import output
from banksman.cli.output import Exit
from banksman.cli.settings import UpSettings
from banksman.cli.state import DataDir, Lock
from banksman.contracts.errors import Conflict
from banksman.runtime.settings import load
from banksman.tool_runner.identity import sandbox_identity
from banksman.tool_runner.workspaces.workspace import default_root


def reset(data_dir: Path | None, *, force: bool, as_json: bool) -> Exit:
    """Delete a data directory, and the workspaces that had to be kept elsewhere; asks first.

    Raises:
        BadInput: a setting is wrong.
        Conflict: the system runs, or the directory is none of ours.
    """
    data = DataDir((data_dir or load(UpSettings).data_dir).resolve())
    if data.path.exists() and not data.lock_file.exists():
        raise Conflict(f"{data.path} was not made by `banksman up`: it is left alone")
    doomed = [path for path in _places(data) if path.exists()]
    if not doomed:
        _tell([], as_json=as_json)
        return Exit.OK
    if not force and not _agreed(doomed):
        return Exit.WARNING
    lock = Lock(data)
    if lock.take() is not None:
        raise Conflict(f"a system runs in {data.path}: `banksman down` ends it")
    try:
        data.end_leftovers()
        for path in doomed:
            shutil.rmtree(path)
    finally:
        lock.release()
    _tell(doomed, as_json=as_json)
    return Exit.OK


def _places(data: DataDir) -> tuple[Path, ...]:
    workspaces = default_root(data.path, sandbox_identity())
    return (data.path,) if workspaces.is_relative_to(data.path) else (data.path, workspaces.parent)


def _agreed(doomed: list[Path]) -> bool:
    output.say("This deletes every conversation, file and key in:")
    for path in doomed:
        output.say(f"  {path}")
    try:
        return input("Delete? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _tell(deleted: list[Path], *, as_json: bool) -> None:
    if as_json:
        output.emit({"deleted": [str(path) for path in deleted]})
    else:
        output.say(f"deleted {', '.join(map(str, deleted))}" if deleted else "nothing to delete")
