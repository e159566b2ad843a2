"""Requests of clients about the processes of a conversation."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from banksman.contracts.processes import MAX_OUTPUT_BYTES, KnownProcess, ProcessInfo, ProcessOutput
from banksman.contracts.runner_requests import (
    FileReply,
    ProcessList,
    ProcessRead,
    ProcessRequest,
    ProcessStop,
)
from banksman.tool_runner.processes.process import Process
from banksman.tool_runner.processes.processes import LOST, Key, LastingProcesses


@dataclass(frozen=True, slots=True)
class ProcessRequests:
    processes: LastingProcesses

    async def reply(self, key: Key, request: ProcessRequest) -> FileReply:
        """Reply to a request; neither `output` nor `processes` for a process that is unknown."""
        match request:
            case ProcessList():
                return FileReply(processes=tuple(self._list(key, request.place.processes)))
            case ProcessRead():
                process = self.processes.get(key, request.process_id)
                return FileReply(output=process and self._output(process, request.after))
            case ProcessStop():
                return FileReply(processes=await self._stopped(key, request.process_id))
            case _:
                assert_never(request)

    def _list(self, key: Key, known: tuple[KnownProcess, ...]) -> Iterator[ProcessInfo]:
        """Yield the processes, first those that the model takes for running and that this runner lost."""
        here = [self._info(process) for process in self.processes.list(key)]
        for one in known:
            if all(one.id != process.id for process in here):
                yield ProcessInfo(**dict(one), status="ended", reason=LOST)
        yield from here

    async def _stopped(self, key: Key, process_id: str) -> tuple[ProcessInfo, ...]:
        process = self.processes.get(key, process_id)
        if process is None:
            return ()
        await self.processes.stop(process, "user")
        return (self._info(process),)

    def _output(self, process: Process, after: int | None) -> ProcessOutput:
        wanted = process.output.total_bytes - MAX_OUTPUT_BYTES if after is None else after
        kept, start = process.output.read(wanted)
        part = kept[:MAX_OUTPUT_BYTES]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        info = self._info(process)
        # The rest of a character at the end of the part may still be written.
        whole = info.status == "ended" and len(part) == len(kept)
        text = decoder.decode(part, final=whole)
        end = start + len(part) - len(decoder.getstate()[0])
        return ProcessOutput(process=info, output=text, start=start, next=end, more=end < info.output_bytes)

    def _info(self, process: Process) -> ProcessInfo:
        return process.info(self.processes.settings.idle_s)
