"""Render the configurations of nats-server for one server and for a cluster of three into deploy/nats/.

    tools/nats_profiles.py [--check]

`--check` only compares the files with the permissions in the code; the exit code is 1 if one differs.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from banksman.cli.broker.accounts import user_names
from banksman.cli.broker.conf import Variable
from banksman.cli.broker.keys import key_variable
from banksman.cli.broker.server_config import Cluster, Tls, render_config
from banksman.deployment.topology import StorageBudget

FOLDER = Path(__file__).parents[1] / "deploy" / "nats"
BUDGET = StorageBudget(20 * 1024**3)
"""Bytes of each server's volume for streams."""
STORE_DIR = "/data"
TLS_DIR = "/etc/banksman/tls"
"""Directory of each server's own `server.crt` and `server.key`, and of the common `ca.crt`."""
CLIENT_PORT, MONITORING_PORT, ROUTE_PORT = 4222, 8222, 6222
NODES = ("nats-1", "nats-2", "nats-3")
"""Names of the cluster's servers, which are their host names and the names in their certificates."""

_ONE = """\
# One nats-server for all of Banksman: accounts, users and the few subjects that cross between them.
#
# Rendered by `tools/nats_profiles.py`; a test compares. The public keys come from the server's environment
# (BANKSMAN_NKEY_...); the seeds stay with the services. `/data` is the volume of the streams. The monitoring
# port is for the internal network only.

"""
_THREE = """\
# One of three nats-servers that each keep every stream: any one of them may fail.
#
# Rendered by `tools/nats_profiles.py`; a test compares, another runs them. Their hosts are called nats-1,
# nats-2 and nats-3. Clients and routes are encrypted; each server finds its own certificate and the CA's in
# /etc/banksman/tls (`deploy/nats/certificates.sh` creates them). With BANKSMAN_NATS__REPLICAS=3, set for
# every service and for the operator, each server keeps every stream.

"""


def main() -> int:
    stale = [name for name, text in files().items() if _stored(name) != text]
    if "--check" in sys.argv:
        for name in stale:
            print(f"deploy/nats/{name} differs from what the code renders: run tools/nats_profiles.py")
        return 1 if stale else 0
    for name in stale:
        (FOLDER / name).parent.mkdir(exist_ok=True)
        (FOLDER / name).write_text(files()[name], encoding="utf-8")
    return 0


def files() -> Mapping[str, str]:
    """The text of each rendered file below deploy/nats/."""
    return {
        "nats.conf": _ONE + _rendered(),
        **{f"cluster/{node}.conf": _THREE + _node(node) for node in NODES},
    }


def _node(name: str) -> str:
    certificate = Tls(f"{TLS_DIR}/server.crt", f"{TLS_DIR}/server.key")
    checked = Tls(certificate.cert_file, certificate.key_file, f"{TLS_DIR}/ca.crt")
    routes = tuple(f"nats-route://{node}:{ROUTE_PORT}" for node in NODES)
    return _rendered(name, certificate, Cluster(f"0.0.0.0:{ROUTE_PORT}", routes, tls=checked))


def _rendered(name: str = "nats", tls: Tls | None = None, cluster: Cluster | None = None) -> str:
    return render_config(
        {user: Variable(key_variable(user)) for user in user_names()},
        port=CLIENT_PORT,
        host="0.0.0.0",
        http_port=MONITORING_PORT,
        http_host="0.0.0.0",
        server_name=name,
        store_dir=STORE_DIR,
        budget=BUDGET,
        tls=tls,
        cluster=cluster,
    )


def _stored(name: str) -> str:
    file = FOLDER / name
    return file.read_text(encoding="utf-8") if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
