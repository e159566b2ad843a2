"""The generic `/etc` of commands, in which programs find users, names and settings, but none of this host."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from banksman.tool_runner.sandbox.base import HOME, HOME_APART, USER

DIRECTORY = "/etc/banksman"
"""Where the files are in the sandbox; the usual names in `/etc` are links to them."""

_USERS = {HOME: "passwd", HOME_APART: "passwd-apart"}
"""The files with the users, by the home directory that they state."""
_FILES = {
    "group": f"root:x:0:\n{USER}:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "# There is no name server: a proxy, if there is one, looks names up.\n",
    "gitconfig": f"[init]\n\tdefaultBranch = main\n[core]\n\texcludesFile = {DIRECTORY}/gitignore\n",
    "gitignore": ".banksman/\n.banksman-*\n",
}
_COPIED = ("mime.types",)


def write_etc(directory: Path) -> None:
    """Write the files, which every command can read; `directory` may exist."""
    directory.mkdir(exist_ok=True)
    directory.chmod(0o755)
    root = "root:x:0:0:root:/root:/usr/sbin/nologin\n"
    users = {name: f"{root}{USER}:x:1000:1000:{USER}:{home}:/bin/bash\n" for home, name in _USERS.items()}
    for name, text in (_FILES | users).items():
        (directory / name).write_text(text)
    for name in _COPIED:
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(f"/etc/{name}", directory / name)
    for file in directory.iterdir():
        file.chmod(0o644)


def etc_options(directory: Path, home: str) -> tuple[str, ...]:
    """Return options of bwrap that show the files in `/etc`; `home` is one of the keys of `_USERS`."""
    links = ((f"{DIRECTORY}/{name}", f"/etc/{name}") for name in (*_FILES, *_COPIED))
    users = (f"{DIRECTORY}/{_USERS[home]}", "/etc/passwd")
    zone = ("/usr/share/zoneinfo/UTC", "/etc/localtime")
    linked = (word for target, path in (*links, users, zone) for word in ("--symlink", target, path))
    return ("--ro-bind", os.fspath(directory), DIRECTORY, *linked)
