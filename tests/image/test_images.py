"""What the images hold, and what they must not: the secrets of their build."""

import subprocess

import pytest

from banksman.testing.compose import MARKER, TAG, Compose

IMAGES = ("agent", "gateway", "model-server", "nats", "tool-runner", "workflows")


def test_nothing_of_the_build_secrets_is_in_any_layer_or_in_the_history(built: Compose) -> None:
    names = [f"banksman-{name}:{TAG}" for name in IMAGES]

    histories = [built.engine.output("history", "--no-trunc", name) for name in names]
    found = _occurrences(built, names, MARKER)
    control = _occurrences(built, names, "requirements/workflows.txt")

    assert not [history for history in histories if MARKER in history]
    assert found == 0
    assert control > 0


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_nobody_with_its_own_command_and_no_files_of_the_build(
    built: Compose, image: str
) -> None:
    script = (
        "id -u; banksman --help | head -c 5; find / -xdev -name pip.conf 2>&-; "
        "ls /src /run/secrets /requirements; touch /opt/banksman/x"
    )

    done = _run(built, image, script)

    assert done.stdout.split() == ["10001", "Usage"], done.stdout
    assert done.stderr.count("No such file or directory") == 3, done.stderr
    assert "Permission denied" in done.stderr


def test_only_the_tool_runners_image_has_bubblewrap(built: Compose) -> None:
    present = [
        image for image in IMAGES if _run(built, image, "type -P bwrap prlimit bash | wc -l").stdout == "3\n"
    ]

    assert present == ["tool-runner"]


def _run(built: Compose, image: str, script: str) -> subprocess.CompletedProcess[str]:
    command = ("run", "--rm", "--network=none", "--entrypoint=bash", f"banksman-{image}:{TAG}", "-c", script)
    return built.engine.docker(*command, timeout_s=120)


def _occurrences(built: Compose, names: list[str], text: str) -> int:
    """How often the images' layers and descriptions hold a text; layers are saved uncompressed."""
    with subprocess.Popen(
        ["docker", "save", *names], env=built.engine.environment, stdout=subprocess.PIPE
    ) as saving:
        counted = subprocess.run(
            ["grep", "--text", "--count", "--fixed-strings", text],
            stdin=saving.stdout,
            capture_output=True,
            text=True,
        )
        assert saving.stdout is not None
        saving.stdout.close()
    assert saving.returncode == 0
    return int(counted.stdout)
