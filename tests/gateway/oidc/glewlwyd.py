"""A second OpenID Connect provider for tests: Glewlwyd, a server in C, as Debian packages it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import tarfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from tests.support.debian import cache_directory, exclusively, host_release, make_archive
from tests.support.polling import wait_until

from banksman.cli.machine import free_port

CLIENT = {"client_id": "page", "client_secret": "100% secret + more: &"}
PASSWORD = "password"
NEEDED = ("usr/lib/", "usr/bin/glewlwyd", "usr/share/glewlwyd/", "usr/share/dbconfig-common/data/", "lib")
CLAIMS = ("tenant", "roles")
MODULES = {"user": "user", "client": "client", "user_auth_scheme": "scheme", "plugin": "plugin"}
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json"}
FLOWS = ("token", "implicit", "password", "client", "device", "none")


@dataclass(frozen=True)
class Glewlwyd:
    """A running provider without accounts."""

    url: str
    admin: httpx.Client
    """Signed in as the administrator."""

    @property
    def issuer(self) -> str:
        return f"{self.url}/api/oidc"

    def register(self, page: str) -> None:
        """Let the page at an address sign users in, and no other one."""
        client = {
            **CLIENT,
            "confidential": True,
            "enabled": True,
            "authorization_type": ["code", "refresh_token"],
            "redirect_uri": [page],
            "token_endpoint_auth_method": ["client_secret_post"],
        }
        self.admin.delete(f"client/{CLIENT['client_id']}")
        self._post("client/", client)

    def add_user(self, name: str, **claims: Any) -> None:
        """Add a user with `PASSWORD` who has consented to the page."""
        user = {"username": name, "password": PASSWORD, "enabled": True, "scope": ["openid"], **claims}
        self._post("user/", user)
        with httpx.Client(base_url=f"{self.url}/api/") as own:
            own.post("auth/", json={"username": name, "password": PASSWORD}).raise_for_status()
            own.put(f"auth/grant/{CLIENT['client_id']}", json={"scope": "openid"}).raise_for_status()

    def configure(self) -> None:
        """Add the claims of users, and the module that makes this server a provider."""
        key = json.loads(RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 2048)))
        del key["key_ops"]
        parameters = {
            "iss": self.issuer,
            "jwks-private": json.dumps({"keys": [{**key, "kid": "one", "alg": "RS256"}]}),
            "jwks-show": True,
            "default-kid": "one",
            "jwt-type": "rsa",
            "jwt-key-size": "256",
            "code-duration": 60,
            "access-token-duration": 600,
            "refresh-token-duration": 600,
            "refresh-token-one-use": "always",
            "auth-type-code-enabled": True,
            "auth-type-refresh-enabled": True,
            **{f"auth-type-{flow}-enabled": False for flow in FLOWS},
            "allow-non-oidc": False,
            "pkce-allowed": True,
            "pkce-required": True,
            "oauth-as-iss-id": True,
            "introspection-revocation-allowed": True,
            "introspection-revocation-allow-target-client": True,
            "session-management-allowed": True,
            "session-cookie-name": "session",
            "session-cookie-expiration": 600,
            "claims": [
                {"name": name, "user-property": name, "type": "string", "scope": ["openid"]}
                for name in CLAIMS
            ],
        }
        self._post(
            "mod/plugin/", {"module": "oidc", "name": "oidc", "enabled": True, "parameters": parameters}
        )
        users = self.admin.get("mod/user/database").json()
        for name in CLAIMS:
            users["parameters"]["data-format"][name] = {
                "multiple": name == "roles",
                "read": True,
                "write": True,
            }
        self.admin.put("mod/user/database", json=users).raise_for_status()
        self.admin.put("mod/user/database/reset").raise_for_status()

    def _post(self, path: str, body: dict[str, Any]) -> None:
        answer = self.admin.post(path, json=body)
        assert answer.status_code == 200, answer.text


@contextmanager
def running_glewlwyd(folder: Path) -> Generator[Glewlwyd]:
    """Run a provider on a free port of the loopback interface."""
    root = _unpacked()
    store = folder / "store.db"
    with sqlite3.connect(store) as connection:
        tables = root / "usr/share/dbconfig-common/data/glewlwyd/install/sqlite3"
        connection.executescript(tables.read_text(encoding="utf-8"))
    connection.close()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    configuration = folder / "glewlwyd.conf"
    configuration.write_text(_configuration(root, store, port), encoding="utf-8")
    # The packages' own C library, which may be newer than this machine's; `lib` and `usr/lib` may be one.
    loader = next(root.glob("**/lib/*/ld-linux-*.so.*"))
    libraries = ":".join(str(root / place / loader.parent.name) for place in ("lib", "usr/lib"))
    command = [loader, "--library-path", libraries, root / "usr/bin/glewlwyd", "-c", configuration]
    process = subprocess.Popen(command, stdout=DEVNULL, stderr=DEVNULL)
    with process, httpx.Client(base_url=f"{url}/api/") as admin:
        try:
            wait_until(lambda: _answers(url))
            admin.post("auth/", json={"username": "admin", "password": "password"}).raise_for_status()
            provider = Glewlwyd(url, admin)
            provider.configure()
            yield provider
        finally:
            process.kill()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/config").status_code == 200
    except httpx.TransportError:
        return False


def _configuration(root: Path, store: Path, port: int) -> str:
    settings = {
        "port": port,
        "bind_address": "127.0.0.1",
        "external_url": f"http://127.0.0.1:{port}",
        "login_url": "login.html",
        "api_prefix": "api",
        "log_mode": "console",
        "log_level": "WARNING",
        "session_key": "glewlwyd",
        "session_expiration": 600,
        "admin_scope": "g_admin",
        "profile_scope": "g_profile",
        "hash_algorithm": "SHA512",
        "static_files_path": f"{root}/usr/share/glewlwyd/webapp",
        **{f"{name}_module_path": f"{root}/usr/lib/glewlwyd/{kind}" for name, kind in MODULES.items()},
    }
    kinds = ", ".join(f'{{ extension = "{ending}"; mime_type = "{kind}" }}' for ending, kind in KINDS.items())
    return "\n".join(
        [
            *(f"{name} = {json.dumps(value)}" for name, value in settings.items()),
            "cookie_secure = false",
            f"static_files_mime_types = ({kinds})",
            f'database = {{ type = "sqlite3"; path = "{store}" }}',
        ]
    )


def _unpacked() -> Path:
    """Return the directory with the server's files; fetch them if they are missing."""
    kept = cache_directory() / f"glewlwyd-{host_release()}"
    with exclusively(kept.with_suffix(".lock")):
        if not kept.exists():
            archive = kept.with_suffix(".tar")
            make_archive(archive, ["glewlwyd"], variant="extract", release=host_release())
            partial = kept.with_suffix(".partial")
            with tarfile.open(archive) as packed:
                # tarfile has extraction filters since Python 3.11.4.
                packed.extractall(
                    partial, [one for one in packed if one.name.lstrip("./").startswith(NEEDED)]
                )
            archive.unlink()
            partial.rename(kept)
    return kept
