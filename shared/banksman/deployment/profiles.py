"""The configurations that are deployed: one server, or a cluster of three. Files in `deploy/nats/`."""

from __future__ import annotations

from collections.abc import Mapping

from banksman.deployment.accounts import Cluster, Tls, render_config, user_names
from banksman.deployment.conf import Variable
from banksman.deployment.keys import key_variable
from banksman.deployment.topology import StorageBudget

BUDGET = StorageBudget(20 * 1024**3)
"""Bytes of each server's volume that streams may take."""
STORE_DIR = "/data"
TLS_DIR = "/etc/banksman/tls"
"""Each server finds its own `server.crt` and `server.key` here, and the `ca.crt` of all."""
CLIENT_PORT, MONITORING_PORT, ROUTE_PORT = 4222, 8222, 6222
NODES = ("nats-1", "nats-2", "nats-3")
"""Names of the cluster's servers, which their hosts have in the network and in their certificates."""

_ONE = """\
# One nats-server for all of Banksman: accounts, users and the few subjects that cross between them.
#
# Rendered by `banksman.deployment.accounts.render_config`; a test compares. The public keys come from the server's
# environment (BANKSMAN_NKEY_...); the seeds stay with the services. `/data` is the volume of the streams.
# The monitoring port is for the internal network only.

"""
_THREE = """\
# One of three nats-servers that keep every stream together: any one may be lost.
#
# Rendered like nats.conf (`tools/nats_profiles.py`); a test compares, another runs them. Their hosts are
# called nats-1, nats-2 and nats-3. Clients and routes are encrypted; each server finds its own certificate
# and the CA's in /etc/banksman/tls (`deploy/nats/certificates.sh` makes them). With
# BANKSMAN_NATS__REPLICAS=3, given to every service and to the operator, each server keeps every stream.

"""


def files() -> Mapping[str, str]:
    """Every file below `deploy/nats/` that is rendered, with its text."""
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
        _variables(),
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


def _variables() -> dict[str, Variable]:
    return {user: Variable(key_variable(user)) for user in user_names()}
