"""Small volumes on loop devices, for power cuts and full disks."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.support import privileged
from tests.support.supervised import cleaned_up_by

_SETTLED_TRIES = 100


def require_volumes() -> None:
    """Skip the check where loop devices cannot be mounted."""
    ok = os.geteuid() == 0 and shutil.which("mkfs.ext4") is not None and Path("/dev/loop-control").exists()
    privileged.require("loop devices, as root", ok, "volumes whose power is cut or that are full")


class Volume:
    """An ext4 file system in a file, mounted while the `with` block runs."""

    def __init__(self, image: Path, mount_point: Path) -> None:
        self.image = image
        self.path = mount_point

    @classmethod
    @contextmanager
    def made(cls, image: Path, mount_point: Path, *, megabytes: int) -> Generator[Volume]:
        """Create and mount an empty volume."""
        with image.open("wb") as file:
            file.truncate(megabytes * 1024 * 1024)
        # After an error the kernel makes the volume read-only, as most systems configure it.
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-e", "remount-ro", str(image))
        with cls.mounted(image, mount_point) as volume:
            yield volume

    @classmethod
    @contextmanager
    def mounted(cls, image: Path, mount_point: Path) -> Generator[Volume]:
        """Mount an existing volume; mounting replays its journal, as after a power cut."""
        mount_point.mkdir(parents=True, exist_ok=True)
        # A process that was just killed may still hold files; a lazy unmount waits for it. The kernel frees
        # the loop device with the last user of the mount (LO_FLAGS_AUTOCLEAR in loop(4)).
        unmount = ("umount", "--lazy", str(mount_point))
        with cleaned_up_by(unmount):
            _run("mount", "-o", "loop", str(image), str(mount_point))
            try:
                yield cls(image, mount_point)
            finally:
                _run(*unmount)

    def sync(self) -> None:
        """Flush all writes so far to the device."""
        _run("sync", "-f", str(self.path))

    def cut(self, copy: Path) -> None:
        """Write to `copy` the contents that the device would have after a power cut at this moment.

        It contains all writes that the file system has sent to the device, without those in the page cache.
        The caller must stop every writer first, or `copy` mixes several moments. If the kernel itself writes
        during the copy, this method detects it and copies again.

        Raises:
            RuntimeError: The kernel keeps writing to the device.
        """
        for _ in range(_SETTLED_TRIES):
            before = self._writes()
            _run("cp", "--sparse=always", str(self.image), str(copy))
            if self._writes() == before:
                return
        raise RuntimeError(f"{self.image} is written all the time")

    def _writes(self) -> tuple[str, ...]:
        device = _run("findmnt", "-n", "-o", "SOURCE", str(self.path)).strip()
        # Writes and sectors completed, and requests in flight:
        # https://www.kernel.org/doc/html/latest/block/stat.html
        fields = Path(f"/sys/block/{Path(device).name}/stat").read_text().split()
        return fields[4], fields[6], fields[8]

    @contextmanager
    def filled(self, *, leave: int = 0) -> Generator[None]:
        """Fill the volume while the block runs, completely or up to a number of free bytes."""
        ballast = self.path / "ballast"
        if leave:
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(self.path).free - leave)
            yield
            ballast.unlink()
            return
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 1024 * 1024)
        with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 512)
        try:
            yield
        finally:
            ballast.unlink()

    @contextmanager
    def failed(self, *, synced: bool = False) -> Generator[None]:
        """Make the volume read-only by an error while the block runs; then mount a repaired copy of it.

        The last seconds of what was not synced are lost, unless `synced`.
        """
        if synced:
            _run("sync", "--file-system", str(self.path))
        device = _run("findmnt", "-n", "-o", "SOURCE", str(self.path)).strip()
        Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("1")
        try:
            yield
        finally:
            copy = self.image.with_suffix(".repaired")
            _run("umount", "--lazy", str(self.path))
            _run("cp", "--sparse=always", str(self.image), str(copy))
            # 1: errors were corrected.
            subprocess.run(["e2fsck", "-fy", str(copy)], capture_output=True, check=False)
            _run("mount", "-o", "loop", str(copy), str(self.path))


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
