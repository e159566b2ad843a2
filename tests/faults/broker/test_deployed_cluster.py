"""The configurations of deploy/nats/cluster: encrypted, replicated, and the system runs on them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from tools.nats_profiles import CLIENT_PORT, NODES

from banksman.bus.connection import Bus, NatsSettings
from banksman.bus.jetstream import call
from banksman.bus.names import EVENTS, api
from banksman.contracts.errors import Unavailable
from banksman.deployment.streams import LEAST_STORAGE
from banksman.deployment.topology import app_topology
from tests.faults.broker.deployed import DeployedCluster, deployed_cluster
from tests.support.client import Client
from tests.support.paths import ROOT
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import scripted_model

pytestmark = [
    pytest.mark.timeout(240),
    # nats-py leaves the socket of the encrypted connection to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Generator[DeployedCluster]:
    # The tool-runner's sandbox must reach its folder; other users cannot enter pytest's folders.
    with tempfile.TemporaryDirectory(prefix="banksman-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        with deployed_cluster(directory, replicas=1) as running:
            yield running


def test_the_deployed_configurations_equal_the_rendered_configurations() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "nats_profiles.py", "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


async def test_the_system_runs_on_three_encrypted_servers_one_of_which_is_killed(
    cluster: DeployedCluster,
) -> None:
    """Provisioning again gives streams three replicas; then any server may be lost during a run."""
    assert "stream EVENTS created" in cluster.run("streams", "provision")
    cluster.use(3)
    assert "stream EVENTS updated: num_replicas" in cluster.run("streams", "provision")
    assert cluster.run("streams", "provision") == "nothing to do\n"
    assert cluster.run("streams", "check") == "streams are as strong as required\n"
    with scripted_model() as model:
        bash = ScriptedReply(tool_calls=(ScriptedCall(name="bash", arguments={"command": "echo signalled"}),))
        name = model.play("cluster", [bash, ScriptedReply(text="Lifted.")])
        async with (
            cluster.services(model.url),
            Client.connected(cluster.gateway, timeout_s=60) as client,
        ):
            conversation = await client.create(name)
            run_id = await client.chat(conversation, "lift")
            approval_request = await client.approval_request(run_id)
            async with await cluster.operator() as operator:
                await _is_replicated(operator)
                lost = (await call(operator, api("STREAM.INFO", EVENTS)))["cluster"]["leader"]
            cluster.kill(lost)
            reply = await client.decide(approval_request["approval_id"])
            outcome = await client.finished(run_id)
    assert reply["type"] == "ack", reply
    assert (outcome["status"], outcome["content"]) == ("completed", "Lifted.")
    assert outcome["tool_calls"][0]["result"]["stdout"] == "signalled\n"


async def test_a_client_without_the_ca_is_refused(cluster: DeployedCluster) -> None:
    alive = next(node for node in NODES if node in cluster.processes)
    port = cluster.ports[alive][str(CLIENT_PORT)]
    for url in (f"tls://127.0.0.1:{port}", f"nats://127.0.0.1:{port}"):
        seed = Path(cluster.as_operator["BANKSMAN_NATS__NKEY_SEED_FILE"])
        settings = NatsSettings(url=url, nkey_seed_file=seed, connect_timeout_s=2)
        with pytest.raises(Unavailable):
            await Bus(settings, name="stranger").open()


async def _is_replicated(operator: Bus) -> None:
    topology = app_topology(LEAST_STORAGE, replicas=3)
    for stream in topology.streams:
        info = await call(operator, api("STREAM.INFO", stream.name))
        assert len(info["cluster"]["replicas"]) == 2, stream.name
    for consumer in topology.consumers:
        info = await call(operator, api("CONSUMER.INFO", consumer.stream, consumer.durable))
        assert info["config"]["num_replicas"] == 3, consumer.durable
