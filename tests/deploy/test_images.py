"""The contents of the images; no image contains a secret of its build."""

import subprocess

import pytest

from tests.deploy.stack import MARKER, TAG, Ended, Stack, run_in_image

CONTROL = "Successfully uninstalled"
"""A string in pip's own code, which is in every image."""

LABELS = " ".join(
    f'{{{{index .Config.Labels "org.opencontainers.image.{name}"}}}}'
    for name in ("licenses", "version", "revision")
)

IMAGES = ("agent", "gateway", "model-server", "nats", "tool-runner", "workflows")


def test_no_layer_and_no_history_contains_a_build_secret(built: Stack) -> None:
    names = [f"banksman-{name}:{TAG}" for name in IMAGES]

    histories = [built.engine.output("history", "--no-trunc", name) for name in names]
    found = _found_in_layers(built, names, MARKER, CONTROL)

    assert not [history for history in histories if MARKER in history]
    assert found == {CONTROL}


@pytest.mark.parametrize("image", IMAGES)
def test_image_runs_unprivileged_with_its_own_command_and_without_build_files(
    built: Stack, image: str
) -> None:
    files = "find /src /run/secrets /requirements -type f; find / -xdev -name pip.conf 2>/dev/null"

    done = _run(built, image, f"id -u; banksman --help | head -c 5; {files}; touch /opt/banksman/x")

    assert done.stdout.split() == ["10001", "Usage"], done.stdout
    assert "/opt/banksman/x': Permission denied" in done.stderr, done.stderr


def test_only_the_tool_runners_image_has_bubblewrap(built: Stack) -> None:
    present = [image for image in IMAGES if _run(built, image, "type -P bwrap bash | wc -l").stdout == "2\n"]

    assert present == ["tool-runner"]


@pytest.mark.parametrize("image", IMAGES)
def test_image_is_labelled_with_licence_version_and_revision(built: Stack, image: str) -> None:
    labels = built.engine.output("image", "inspect", "--format", LABELS, f"banksman-{image}:{TAG}")

    assert labels.split() == ["Apache-2.0", "unreleased", "unknown"]


def _run(built: Stack, image: str, script: str) -> Ended:
    return run_in_image(built.engine, f"banksman-{image}:{TAG}", script)


def _found_in_layers(built: Stack, names: list[str], *texts: str) -> set[str]:
    """Return the texts that the images' layers and descriptions contain; saved layers are uncompressed."""
    with subprocess.Popen(
        ["docker", "save", *names], env=built.engine.environment, stdout=subprocess.PIPE
    ) as saving:
        patterns = [word for text in texts for word in ("-e", text)]
        searched = subprocess.run(
            ["grep", "--text", "--only-matching", "--fixed-strings", *patterns],
            stdin=saving.stdout,
            capture_output=True,
            text=True,
        )
    assert saving.returncode == 0
    return set(searched.stdout.split("\n")) - {""}
