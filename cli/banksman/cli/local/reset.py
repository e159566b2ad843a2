"""`banksman reset`: delete all data of a system."""

from __future__ import annotations

import shutil
from pathlib import Path

from banksman.cli import output
from banksman.cli.output import Exit
from banksman.cli.prompts import prompt
from banksman.cli.services import service_module
from banksman.cli.settings import UpSettings
from banksman.cli.state import DataDir, Lock
from banksman.contracts.errors import Conflict
from banksman.runtime.settings import load


def reset(data_dir: Path | None, *, force: bool, as_json: bool) -> Exit:
    """Delete a data directory, and workspaces outside it, after confirmation.

    Raises:
        BadInput: a setting is invalid.
        Conflict: the system is running, or `banksman up` did not create the directory.
    """
    data = DataDir((data_dir or load(UpSettings).data_dir).resolve())
    if data.path.exists() and not data.lock_file.exists():
        raise Conflict(f"{data.path} was not created by `banksman up`; nothing is deleted")
    directories = [path for path in _directories(data) if path.exists()]
    if directories and not force and not _confirmed(directories):
        return Exit.WARNING
    lock = Lock(data)
    if directories and lock.take() is not None:
        raise Conflict(f"a system is running in {data.path}: `make down` or `banksman down` stops it")
    try:
        data.end_leftovers()
        for path in directories:
            shutil.rmtree(path)
    finally:
        lock.release()
    deleted = [str(path) for path in directories]
    text = f"deleted {', '.join(deleted)}" if deleted else "nothing to delete"
    output.print_result({"deleted": deleted}, text, as_json=as_json)
    return Exit.OK


def _directories(data: DataDir) -> tuple[Path, ...]:
    """Return the data directory, and the workspaces' directory if the tool-runner keeps it elsewhere."""
    workspaces: Path = service_module("tool-runner", "machine").workspaces_root(data.path)
    return (data.path,) if workspaces.is_relative_to(data.path) else (data.path, workspaces.parent)


def _confirmed(directories: list[Path]) -> bool:
    output.print_error("This deletes all conversations, files and keys in:")
    for path in directories:
        output.print_error(f"  {path}")
    return prompt("Delete? [y/N] ") in ("y", "yes")
