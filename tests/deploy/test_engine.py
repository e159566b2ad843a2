"""The tests' own engine and base image do what the other tests of containers build on."""

from tests.support.docker_engine import DockerEngine


def test_the_base_image_has_what_a_sandbox_and_a_dockerfile_want(
    docker_engine: DockerEngine, base_image: str
) -> None:
    wanted = "bash cat find ps python mount sha256sum apt-get useradd install"

    found = docker_engine.output(
        "run", "--rm", "--network=none", "--init", base_image, "bash", "-c", f"type -P {wanted} | wc -l"
    )

    assert found == str(len(wanted.split()))
