"""Images of the workspace: what a model gets to see of them."""

from __future__ import annotations

import io
from collections.abc import Callable

import pillow_heif
import pytest
from PIL import Image, ImageDraw
from tests.tool_runner.conftest import Runner, only

from banksman.contracts.runner_requests import MAX_FILE_BYTES
from banksman.contracts.workspaces import IMAGES_DIRECTORY
from banksman.tool_runner.settings import RunnerLimits

pillow_heif.register_heif_opener()
pytestmark = only("bwrap", "an image is converted in a process of the runner")
SUFFIXES = {"PNG": "png", "JPEG": "jpg", "GIF": "gif", "WEBP": "webp", "HEIF": "heic", "AVIF": "avif"}


def screenshot(width: int, height: int) -> Image.Image:
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    for y in range(0, height, 24):
        draw.text((8, y), "The quick brown fox jumps over the lazy dog. " * 8, fill="black")
    return image


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    output = io.BytesIO()
    image.save(output, form, **options)
    return output.getvalue()


async def shown(runner: Runner, name: str, data: bytes) -> tuple[Image.Image, dict[str, object]]:
    """Write and read an image; return what a model sees, and the result."""
    (runner.workspace.directory / name).write_bytes(data)
    outcome = await runner.call("read_file", path=name)
    assert outcome.value["success"] is True, outcome.value
    [path] = outcome.value["images"]  # pyright: ignore
    seen = (runner.workspace.directory / str(path)).read_bytes()
    assert len(seen) <= MAX_FILE_BYTES and str(path).startswith(f"{IMAGES_DIRECTORY}/")
    return Image.open(io.BytesIO(seen)), dict(outcome.value)


@pytest.mark.parametrize("form", list(SUFFIXES))
async def test_every_format_is_shown_as_png_or_jpeg(runner: Runner, form: str) -> None:
    name = f"shot.{SUFFIXES[form]}"
    seen, result = await shown(runner, name, encoded(screenshot(640, 480), form))

    assert (seen.format, seen.size) == ("JPEG" if form in ("JPEG", "HEIF", "AVIF") else "PNG", (640, 480))
    assert (result["path"], "note" in result) == (name, False)
    dark = seen.convert("L").point([255] * 100 + [0] * 156).getbbox()
    assert dark is not None and dark[2] > 600


async def test_a_large_photo_is_reduced_turned_and_stripped_of_its_place(runner: Runner) -> None:
    photo = Image.linear_gradient("L").resize((2016, 1512)).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6
    exif.get_ifd(0x8825)[1] = "N"
    seen, result = await shown(runner, "photo.jpg", encoded(photo, "JPEG", exif=exif))

    assert (seen.format, max(seen.size)) == ("JPEG", 1568) and seen.width < seen.height
    assert len(seen.getexif()) == 0
    assert "The image has 2016 x 1512 pixels" in str(result["note"])


async def test_a_screenshot_stays_sharp_and_keeps_its_transparency(runner: Runner) -> None:
    image = Image.new("RGBA", (2560, 1440), (0, 0, 0, 0))
    image.paste(screenshot(1280, 720), (640, 360))
    seen, result = await shown(runner, "shot.png", encoded(image, "PNG"))
    assert (seen.format, seen.mode, seen.size) == ("PNG", "RGBA", (1568, 882))
    assert "2560 x 1440" in str(result["note"])


async def test_what_was_shown_stays_when_the_file_changes(runner: Runner) -> None:
    first, one = await shown(runner, "plot.png", encoded(Image.new("RGB", (20, 10), "red"), "PNG"))
    _, two = await shown(runner, "plot.png", encoded(Image.new("RGB", (20, 10), "blue"), "PNG"))
    _, again = await shown(runner, "plot.png", encoded(Image.new("RGB", (20, 10), "red"), "PNG"))
    assert one["images"] != two["images"] and one == again
    assert first.convert("RGB").getpixel((0, 0)) == (255, 0, 0)


def bomb() -> bytes:
    return encoded(Image.new("1", (20_000, 20_000)), "PNG")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (bomb, "at most 50000000 can be shown"),
        (
            lambda: encoded(Image.new("RGB", (8000, 6000)), "PNG"),
            "it needs more memory than a conversion may use, which is 256 MiB",
        ),
        (lambda: b"\x89PNG\r\n\x1a\n" + b"\0" * 100, "this image could not be read"),
        (lambda: encoded(screenshot(200, 200), "PNG")[:400], "this image could not be read"),
        (lambda: b"\xff\xd8\xff" + b"x" * (21 * 1024 * 1024), "at most 20971520 can be shown"),
        (lambda: b"\0\0\0\x18ftypheic" + b"\xff" * 5_000, "this image could not be read"),
    ],
)
async def test_damaged_and_endless_images_are_refused(
    runner: Runner, data: Callable[[], bytes], why: str
) -> None:
    (runner.workspace.directory / "bad.png").write_bytes(data())
    outcome = await runner.call("read_file", path="bad.png")
    assert outcome.error_kind == "tool_error" and why in str(outcome.value["error"])


class TestSmallWorkspace:
    @pytest.fixture
    def limits(self, small_workspace: RunnerLimits) -> RunnerLimits:
        return small_workspace

    async def test_an_image_is_not_kept_in_a_full_workspace(self, runner: Runner) -> None:
        fill = runner.limits.workspace.max_bytes
        (runner.workspace.directory / "full").write_bytes(b"x" * (2 * fill))
        (runner.workspace.directory / "a.png").write_bytes(encoded(screenshot(64, 64), "PNG"))
        outcome = await runner.call("read_file", path="a.png")
        assert outcome.error_kind == "tool_error" and "delete files first" in str(outcome.value["error"])
        assert not (runner.workspace.directory / IMAGES_DIRECTORY).exists()
