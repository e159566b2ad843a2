"""Workspaces that start from a git repository or an archive.

The runner fetches it with the tenant's credentials; a sandbox without a network unpacks it. So the
credentials are in no workspace, no process of a sandbox and no file.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shlex
from dataclasses import dataclass

from banksman.contracts.errors import Unavailable
from banksman.contracts.urls import UrlRefused, parse_url
from banksman.contracts.workspaces import RESERVED_PREFIX, RepositoryAccess, WorkspaceOffer, is_allowed
from banksman.tool_runner.egress.client import Egress, FetchFailed
from banksman.tool_runner.egress.git import FetchedBranch, fetch_archive, fetch_branch
from banksman.tool_runner.sandbox.base import WORKSPACE, Sandbox, SandboxCommand, SandboxUnavailable, Stop
from banksman.tool_runner.settings import SandboxLimits
from banksman.tool_runner.tools.toolbox import ToolRun, WorkspaceLocked, within_quota
from banksman.tool_runner.workspaces.entry import SourceFailed
from banksman.tool_runner.workspaces.files import PathRefused
from banksman.tool_runner.workspaces.workspace import Workspace

FETCH_S = CHECKOUT_S = 60.0
_PACK = f"{RESERVED_PREFIX}source.pack"
_UNPACKED = f"{RESERVED_PREFIX}source"
_UNPACK = f"""
set -e
shopt -s dotglob nullglob
trap 'rm -rf {WORKSPACE}/{_UNPACKED}' EXIT
rm -rf {_UNPACKED}
mkdir {_UNPACKED}
if [[ $(head -c 2 "$pack") == PK ]]; then
    python3 - "$pack" {_UNPACKED} <<'END'
import os, sys, zipfile

# The library does not restore the mode, which archives made on Unix have.
with zipfile.ZipFile(sys.argv[1]) as archive:
    for entry in archive.infolist():
        path = archive.extract(entry, sys.argv[2])
        if entry.external_attr >> 16 & 0o111 and os.path.isfile(path):
            os.chmod(path, 0o755)
END
else
    tar -xf "$pack" -C {_UNPACKED} --force-local --no-same-owner --no-same-permissions
fi
rm "$pack"
cd {_UNPACKED}
entries=(*)
[[ ${{#entries[@]}} == 1 && -d $entries && ! -L $entries ]] && cd "./$entries"
rm -rf .banksman {RESERVED_PREFIX}*
find . -mindepth 1 -maxdepth 1 -exec mv -t {WORKSPACE} -- {{}} +
"""
"""Unpacks an archive, without the directory that alone contains everything, as in archives of versions."""
_ALONE = f"""
shopt -s dotglob nullglob
for one in *; do
    if [[ $one != {RESERVED_PREFIX}* && $one != .banksman && ./$one != "$pack" ]]; then
        echo "the workspace has other files" >&2
        exit 1
    fi
done
"""
_MAX_REASON_CHARS = 300


@dataclass(frozen=True, slots=True)
class Repositories:
    sandbox: Sandbox
    egress: Egress
    limits: SandboxLimits
    offer: WorkspaceOffer

    async def load(self, workspace: Workspace, access: RepositoryAccess) -> None:
        """Fill a new workspace; raise `SourceFailed` with the reason for the user."""
        try:
            if access.problem is not None:
                raise FetchFailed(access.problem)
            self._check(workspace.tenant, access.source.repository)
            await self._unpack(workspace, await self._fetch(workspace, access))
        except TimeoutError as error:
            raise SourceFailed(
                access.source.repository, f"it was not fetched within {FETCH_S:g} s"
            ) from error
        except (FetchFailed, UrlRefused, SandboxUnavailable, WorkspaceLocked) as error:
            raise SourceFailed(access.source.repository, str(error)) from error

    async def unpack(self, workspace: Workspace, path: str) -> None:
        """Replace an uploaded archive by its content; raise `PathRefused` unless it is the only file."""
        try:
            await self._unpack(workspace, f"pack={shlex.quote(f'./{path}')}\n{_ALONE}{_UNPACK}")
        except SandboxUnavailable as error:
            raise Unavailable(str(error)) from error
        except (FetchFailed, WorkspaceLocked) as error:
            raise PathRefused(path, str(error)) from None

    def _check(self, tenant: str, repository: str) -> None:
        if not is_allowed(repository, self.offer.repositories_of(tenant)):
            raise UrlRefused(f"the operator of this runner does not allow {repository}")

    async def _fetch(self, workspace: Workspace, access: RepositoryAccess) -> str:
        """Store a pack or an archive in the workspace; return the script that unpacks it."""
        # Nothing has run in this workspace yet, so no link can have this name.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(workspace.directory / _PACK, flags, 0o600)
        source, most = access.source, self.limits.file_size_bytes
        with os.fdopen(fd, "wb") as pack:
            workspace.identity.own(fd)
            async with asyncio.timeout(FETCH_S):
                if not source.is_archive:
                    fetched = await fetch_branch(self.egress, source, access.credentials, pack, most)
                    return _script(str(parse_url(source.repository)), fetched)
                check = functools.partial(self._check, workspace.tenant)
                await fetch_archive(self.egress, check, source, access.credentials, pack, most)
                return f"pack={_PACK}\n{_UNPACK}"

    async def _unpack(self, workspace: Workspace, script: str) -> None:
        run = ToolRun(workspace, CHECKOUT_S, Stop())
        async with within_quota(run, self.limits):
            command = SandboxCommand(script, workspace.directory, CHECKOUT_S)
            outcome = await self.sandbox.run(command, stop=run.stop)
        problem = outcome.output.stderr.text().strip()[-_MAX_REASON_CHARS:]
        outcome.output.close()
        if outcome.exit_code != 0:
            raise FetchFailed(f"it was not unpacked: {outcome.killed_reason or problem}")


def _script(url: str, fetched: FetchedBranch) -> str:
    """No hook, filter, submodule or setting of the repository takes part: git clones none of them."""
    branch, remote = shlex.quote(fetched.branch), shlex.quote(f"refs/remotes/origin/{fetched.branch}")
    shallow = "".join(f"echo {commit} >> .git/shallow\n" for commit in fetched.shallow)
    return f"""
        set -e
        export GIT_CONFIG_NOSYSTEM=1 HOME=/nonexistent
        git init -q --template= -b {branch} .
        git remote add origin {shlex.quote(url)}
        {shallow}
        git index-pack --stdin < {_PACK} > /tmp/pack
        rm {_PACK}
        git update-ref {remote} {fetched.commit}
        git reset -q --hard {fetched.commit}
        git branch -q --set-upstream-to={remote}
    """
