"""The environment of each process has only the variables that the process needs."""

import socket
from pathlib import Path

import pytest

from banksman.cli.local.child_process import ProcessSpec
from banksman.cli.local.plan import LocalNats, Plan, port_for_clients
from banksman.cli.settings import LocalSettings, UpSettings
from banksman.cli.state import DataDir

KEYS = {
    "BANKSMAN_MODELS__ANTHROPIC_API_KEY": "sk-ant-canary-0123456789",
    "BANKSMAN_MODELS__OPENAI_API_KEY": "sk-canary-0123456789",
}
UNRELATED_SECRETS = {"AWS_SECRET_ACCESS_KEY": "canary", "GITHUB_TOKEN": "canary", **KEYS}


def planned(tmp_path: Path, **inherited: str) -> dict[str, ProcessSpec]:
    """Return the processes of a system started with these variables."""
    plan = Plan(
        UpSettings(local=LocalSettings(agents=2, runners=2)),
        LocalNats(DataDir(tmp_path), port=4222, http_port=8222),
        gateway_port=8080,
        inherited={"PATH": "/usr/bin", **inherited},
        runners={"r1": Path("/one"), "r2": Path("/two")},
        notices=("a demo",),
    )
    return {spec.name: spec for spec in (plan.server(), *plan.services())}


def test_plan_has_as_many_agents_and_runners_as_set_and_one_of_each_other_service(tmp_path: Path) -> None:
    assert list(planned(tmp_path)) == [
        "nats", "model-server", "workflows", "tool-runner", "tool-runner-2", "agent-1", "agent-2", "gateway",
    ]  # fmt: skip


def test_plan_with_a_vendor_key_has_no_model_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANKSMAN_MODELS__ANTHROPIC_API_KEY", "sk-ant-canary-0123456789")

    specs = planned(tmp_path)

    assert "model-server" not in specs
    assert specs["gateway"].environment["BANKSMAN_GATEWAY__DEFAULT_MODEL"].startswith("anthropic:claude-")


def test_only_processes_that_call_models_receive_vendor_keys(tmp_path: Path) -> None:
    specs = planned(tmp_path, **UNRELATED_SECRETS)

    holders = {name for name, spec in specs.items() if KEYS.items() & spec.environment.items()}
    strays = {name for name, spec in specs.items() if "canary" in spec.environment.values()}

    assert holders == {"agent-1", "agent-2", "gateway"}
    assert strays == set()


def test_each_service_receives_its_own_nats_seed(tmp_path: Path) -> None:
    seeds = {
        name: Path(spec.environment["BANKSMAN_NATS__NKEY_SEED_FILE"]).name
        for name, spec in planned(tmp_path).items()
        if name not in ("nats", "model-server")
    }

    assert seeds == {
        "workflows": "workflows.nk",
        "tool-runner": "tool-runner-r1.nk",
        "tool-runner-2": "tool-runner-r2.nk",
        "agent-1": "agent.nk",
        "agent-2": "agent.nk",
        "gateway": "gateway.nk",
    }


def test_tool_runner_receives_no_settings_of_other_services(tmp_path: Path) -> None:
    environment = planned(tmp_path, BANKSMAN_GATEWAY__KEYLESS="true", **KEYS)["tool-runner"].environment

    assert [name for name in environment if name.startswith("BANKSMAN_")] == [
        "BANKSMAN_NATS__URL",
        "BANKSMAN_NATS__NKEY_SEED_FILE",
        "BANKSMAN_NATS__MONITORING_URL",
        "BANKSMAN_TOOL_RUNNER__RUNNER",
        "BANKSMAN_TOOL_RUNNER__WORKSPACES_DIR",
        "BANKSMAN_DATA_DIR",
        "BANKSMAN_TOOL_RUNNER__HEALTH_PORT",
    ]


def test_settings_of_a_service_are_passed_to_that_service_only(tmp_path: Path) -> None:
    specs = planned(tmp_path, BANKSMAN_TOOL_RUNNER__DRAIN_S="5", BANKSMAN_LOG__LEVEL="debug")

    assert [name for name, spec in specs.items() if "BANKSMAN_TOOL_RUNNER__DRAIN_S" in spec.environment] == [
        "tool-runner",
        "tool-runner-2",
    ]
    assert all("BANKSMAN_LOG__LEVEL" in spec.environment for name, spec in specs.items() if name != "nats")


def test_health_ports_of_the_settings_stay_the_same_at_each_start(tmp_path: Path) -> None:
    ports = {"BANKSMAN_AGENT__HEALTH_PORT": "9100", "BANKSMAN_GATEWAY__HEALTH_PORT": "9200"}
    specs = planned(tmp_path, **ports)

    assert {name: specs[name].ready_url for name in ("agent-1", "agent-2", "gateway")} == {
        "agent-1": "http://127.0.0.1:9100/readyz",
        "agent-2": "http://127.0.0.1:9101/readyz",
        "gateway": "http://127.0.0.1:9200/readyz",
    }


def test_nats_server_runs_with_gogc_50_unless_its_environment_sets_it(tmp_path: Path) -> None:
    default = planned(tmp_path)
    chosen = planned(tmp_path, GOGC="200", GOMEMLIMIT="4GiB")

    assert default["nats"].environment["GOGC"] == "50"
    assert {name: chosen["nats"].environment[name] for name in ("GOGC", "GOMEMLIMIT")} == {
        "GOGC": "200",
        "GOMEMLIMIT": "4GiB",
    }
    assert all("GOGC" not in spec.environment for name, spec in chosen.items() if name != "nats")


def test_nats_port_stays_the_same_over_restarts_unless_it_is_taken(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    data.prepare()
    first = port_for_clients(data)
    LocalNats(data, port=first, http_port=8222).prepare()
    again = port_for_clients(data)
    with socket.create_server(("127.0.0.1", first)):
        taken = port_for_clients(data)

    assert (again, taken == first) == (first, False)
