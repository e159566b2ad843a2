"""Render the configurations of nats-server for one server and for a cluster of three.

    tools/nats_profiles.py [--check]
    tools/nats_profiles.py --runner r1 --runner r2 --to DIRECTORY

Without arguments, it writes the files of deploy/nats/. `--check` only compares them with the permissions in
the code; the exit code is 1 if a file differs. With ids of runners, it writes the files for a deployment in
which each of these runners has its own key.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from banksman.cli.broker.accounts import MONITORING_VARIABLE, Variable, key_variable, user_names
from banksman.cli.broker.server import Cluster, Tls, render_config
from banksman.deployment.users import EXAMPLE_SERVER

FOLDER = Path(__file__).parents[1] / "deploy" / "nats"
SCALED = ("r1", "r2")
"""Ids of the runners of deploy/docker/compose.scaled.yaml."""
TOOL_SERVERS = (EXAMPLE_SERVER,)
"""Tool servers whose tools the models of all tenants may call."""
STORE_DIR = "/data"
TLS_DIR = "/etc/banksman/tls"
"""Directory of each server's own `server.crt` and `server.key`, and of the common `ca.crt`."""
CLIENT_PORT, MONITORING_PORT, ROUTE_PORT = 4222, 8222, 6222
NODES = ("nats-1", "nats-2", "nats-3")
"""Names of the cluster's servers, which are their host names and the names in their certificates."""

_SINGLE_SERVER_HEADER = """\
# The configuration of a single nats-server: accounts, users and the subjects that are exported between
# accounts.
#
# Rendered by `tools/nats_profiles.py`; a test compares it with the code. The public keys come from the
# server's environment (BANKSMAN_NKEY_...); the seeds stay with the services. `/data` is the volume of the
# streams. The monitoring port is for the internal network only.

"""
_CLUSTER_HEADER = """\
# The configuration of one of three nats-servers, of which any one may fail.
#
# Rendered by `tools/nats_profiles.py`; tests compare it with the code and run it. The hosts are called
# nats-1, nats-2 and nats-3. Clients and routes are encrypted. Each server reads its own certificate and the
# CA's from /etc/banksman/tls (`deploy/nats/certificates.sh` creates them). Set BANKSMAN_NATS__REPLICAS=3 for
# every service and for the operator, so that each server stores every stream.

"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Render the configurations of nats-server.")
    parser.add_argument("--check", action="store_true", help="only compare the files of deploy/nats/")
    parser.add_argument("--runner", action="append", default=[], help="id of a runner with its own key")
    parser.add_argument("--to", type=Path, default=FOLDER, help="directory of the files (%(default)s)")
    options = parser.parse_args()
    if options.runner and options.to == FOLDER:
        parser.error("--runner needs --to: the files of deploy/nats/ are for all deployments")
    runners = tuple(options.runner)
    rendered = (
        files(runners) if runners else {**files(), "scaled.conf": _SINGLE_SERVER_HEADER + _rendered(SCALED)}
    )
    stale = {name: text for name, text in rendered.items() if _stored(options.to / name) != text}
    if options.check:
        for name in stale:
            print(f"deploy/nats/{name} is out of date: run tools/nats_profiles.py")
        return 1 if stale else 0
    for name, text in stale.items():
        (options.to / name).parent.mkdir(parents=True, exist_ok=True)
        (options.to / name).write_text(text, encoding="utf-8")
    return 0


def files(runners: tuple[str, ...] = ()) -> Mapping[str, str]:
    """Return the text of each file, for runners with their own keys or, without ids, for a shared key."""
    return {
        "nats.conf": _SINGLE_SERVER_HEADER + _rendered(runners),
        **{f"cluster/{node}.conf": _CLUSTER_HEADER + _node(runners, node) for node in NODES},
    }


def _node(runners: tuple[str, ...], name: str) -> str:
    certificate = Tls(f"{TLS_DIR}/server.crt", f"{TLS_DIR}/server.key")
    checked = Tls(certificate.cert_file, certificate.key_file, f"{TLS_DIR}/ca.crt")
    routes = tuple(f"nats-route://{node}:{ROUTE_PORT}" for node in NODES)
    return _rendered(runners, name, certificate, Cluster(f"0.0.0.0:{ROUTE_PORT}", routes, tls=checked))


def _rendered(
    runners: tuple[str, ...], name: str = "nats", tls: Tls | None = None, cluster: Cluster | None = None
) -> str:
    return render_config(
        {
            user: Variable(key_variable(user))
            for user in user_names(runners=runners, tool_servers=TOOL_SERVERS)
        },
        port=CLIENT_PORT,
        host="0.0.0.0",
        http_port=MONITORING_PORT,
        http_host="0.0.0.0",
        http_path=MONITORING_VARIABLE,
        server_name=name,
        store_dir=STORE_DIR,
        budget=None,
        tls=tls,
        cluster=cluster,
        runners=runners,
        tool_servers=TOOL_SERVERS,
    )


def _stored(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
