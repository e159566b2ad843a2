"""The engine and the base image of the tests provide what the other container tests require."""

from tests.deploy.stack import run_in_image
from tests.support.docker_engine import DockerEngine


def test_base_image_contains_the_programs_that_sandboxes_and_builds_use(
    docker_engine: DockerEngine, base_image: str
) -> None:
    wanted = "bash cat find ps python mount sha256sum apt-get useradd install"

    found = run_in_image(docker_engine, base_image, f"type -P {wanted} | wc -l", init=True)

    assert found.stdout.strip() == str(len(wanted.split())), found.stderr
