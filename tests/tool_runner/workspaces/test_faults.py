"""Faults of files and disks are reported, end no runner, and never restore outdated files."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fixtures import secured_server
from tests.support.forks import ServiceForks
from tests.tool_runner.service.processes import RunnerProcess, Runners
from tests.tool_runner.workspaces.platform import Platform, platform, started, until
from tests.tool_runner.workspaces.test_snapshots import is_missing

pytestmark = pytest.mark.timeout(300)
"""Seconds. Processes are started and killed, which takes long on a busy machine."""

ODD = r"""
printf odd > $'bad-\xff\xfe name'; ln -s $'to-\xff' link; mkfifo pipe
touch -d '1800-01-01' old; touch -d '@99999999999' far; touch -d '@9000000000000000' farther || true
mkdir -p shut/in; echo shut > shut/in/file; chmod 0 shut/in/file shut/in shut
python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('door')"
"""


@pytest.fixture
def own(tmp_path: Path, forks: ServiceForks) -> Iterator[Runners]:
    """Creates runners on a server where runner `r1` has its own key."""
    with secured_server(tmp_path, runners=("r1",)) as secured:
        made = Runners(secured, forks)
        yield made
        made.close()


async def test_any_files_of_a_command_are_snapshotted_and_restored(runners: Runners) -> None:
    (runner,) = started(runners, 1, BANKSMAN_TOOL_RUNNER__SNAPSHOTS__EVICT_AFTER_S="0.1")
    async with platform(runners.secured) as here:
        await here.sees(runner)
        await here.bash("c1", ODD)
        await here.clean("c1")
        await until(lambda: is_missing(runner.root / here.tenant / "c1"))
        names = r"cat $'bad-\xff\xfe name'; readlink link | od -An -c; chmod 700 shut shut/in; ls shut/in"
        seen = await here.bash("c1", f"{names}; ls old far farther")
        assert seen.split() == ["odd", "t", "o", "-", "377", "\\n", "file", "far", "farther", "old"]
        assert (await here.record("c1")).loss is None


async def test_runner_with_a_replaced_volume_reports_the_loss(own: Runners) -> None:
    """The configured id makes it the same runner; changes since the last snapshot were on the old volume."""
    runner = _of_its_own(own)
    runner.start()
    async with platform(own.secured) as here:
        await here.sees(runner)
        await here.bash("stored", "echo old > a")
        snapshot = (await here.clean("stored")).snapshot
        runner.signal(signal.SIGKILL)
        await runner.ended()
        runner = _of_its_own(own, root=runner.root, BANKSMAN_TOOL_RUNNER__SNAPSHOTS__IDLE_S="3600")
        runner.start()
        await here.sees(runner)
        assert await here.bash("stored", "cat a; echo new > a") == "old\n"
        await here.bash("fresh", "echo new > a")
        runner.signal(signal.SIGKILL)
        await runner.ended()
        await here.sees()
        replaced = _of_its_own(own)
        replaced.start()
        await here.sees(replaced)
        assert await here.bash("stored", "cat a") == "old\n"
        assert await here.bash("fresh", "ls") == ""
        for conversation, reference in (("stored", snapshot), ("fresh", None)):
            record = await here.recorded(conversation, lambda record: record.loss is not None)
            assert record.loss is not None
            assert record.loss.snapshot_ts == (reference and reference.created_at)


async def test_call_reports_at_once_that_its_workspace_cannot_be_created(
    here: Platform, quick_runner: RunnerProcess
) -> None:
    """The result reports the fault, as on a full disk; the run does not wait for its time-out."""
    (quick_runner.root / here.tenant).write_text("no directory")
    _, result = await here.call("c1", "bash", command="touch executed")
    assert result.error_kind == "unavailable"
    assert "File exists" in str(result.content["error"])


async def test_request_with_an_older_snapshot_is_placed_again(runners: Runners) -> None:
    """The request was delayed, for example by a lost connection, and its snapshot is already replaced."""
    (runner,) = started(runners, 1, BANKSMAN_TOOL_RUNNER__SNAPSHOTS__EVICT_AFTER_S="0.1")
    async with platform(runners.secured) as here:
        await here.sees(runner)
        await here.bash("c1", "echo first > a")
        await here.clean("c1")
        late = await here.placed("c1")
        request = here.request(late, "c1", "bash", idempotent=False, command="cat a")
        await here.bash("c1", "echo second > a")
        await here.clean("c1")
        await until(lambda: is_missing(runner.root / here.tenant / "c1"))
        reply = await here.send(late, request)
        assert reply is not None and reply.answer == "wrong_epoch"
        assert await here.bash("c1", "cat a") == "second\n"
        assert (await here.record("c1")).loss is None


def _of_its_own(runners: Runners, *, root: Path | None = None, **settings: str) -> RunnerProcess:
    """Create a runner with its own id and key, on a new volume unless one is given."""
    own = {"BANKSMAN_TOOL_RUNNER__RUNNER": "r1", "BANKSMAN_TOOL_RUNNER__SNAPSHOTS__IDLE_S": "0.05"}
    return runners.make(user="tool-runner-r1", root=root, **(own | settings))
