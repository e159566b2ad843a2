"""The generic files in `/etc` in which the programs of commands find users, names and settings."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import certifi

from banksman.tool_runner.sandbox.base import HOME, HOME_APART, USER

DIRECTORY = "/etc/banksman"
"""Where the files are in a sandbox."""
CERTIFICATES = "ca-certificates.crt"
"""The file with the certificate authorities that the runner trusts."""
_CERTIFICATES_OF_HOST = "/etc/ssl/certs/ca-certificates.crt"

USERS_APART = "passwd-apart"
"""The users as programs of tool servers see them: with another home directory than `passwd` states."""
_TEXTS = {
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "# There is no name server: a proxy, if there is one, looks names up.\n",
    "gitconfig": f"[init]\n\tdefaultBranch = main\n[core]\n\texcludesFile = {DIRECTORY}/gitignore\n",
    "services": "ssh 22/tcp\nsmtp 25/tcp\ndomain 53/tcp\ndomain 53/udp\nhttp 80/tcp\nhttps 443/tcp\n",
    "protocols": "ip 0 IP\nicmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\n",
}
LINKED = (*_TEXTS, "passwd", "group", "mime.types")
"""The files that have the same name in `/etc`."""


def write_etc(directory: Path, uid: int, gid: int) -> None:
    """Write the files, which every command can read; `directory` may exist. Commands run as `uid`."""
    directory.mkdir(exist_ok=True)
    directory.chmod(0o755)
    for name, text in (_TEXTS | _names(uid, gid)).items():
        (directory / name).write_text(text)
    _copy("/etc/mime.types", directory / "mime.types")
    own = os.environ.get("SSL_CERT_FILE") or _CERTIFICATES_OF_HOST
    _copy(own if os.path.exists(own) else certifi.where(), directory / CERTIFICATES)
    for file in directory.iterdir():
        file.chmod(0o644)


def _names(uid: int, gid: int) -> dict[str, str]:
    root = "root:x:0:0:root:/root:/usr/sbin/nologin\n"
    user = f"{root}{USER}:x:{uid}:{gid}:{USER}:{{home}}:/bin/bash\n"
    return {
        "passwd": user.format(home=HOME),
        USERS_APART: user.format(home=HOME_APART),
        "group": f"root:x:0:\n{USER}:x:{gid}:\n",
        "gitignore": ".banksman/\n.banksman-*\n",
    }


def _copy(source: str, target: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.copyfile(source, target)
