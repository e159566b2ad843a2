"""The processes of a conversation that outlive their calls: commands in the background, and sessions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from banksman.contracts.processes import ProcessInfo, ProcessOutput
from banksman.gateway.files.files import ConversationFiles
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, provided

Service = Annotated[ConversationFiles, provided(ConversationFiles)]
ProcessId = Annotated[str, Field(max_length=200)]
After = Annotated[int | None, Field(ge=0)]

operations = Operations("processes")


@operations.add("process.list", "GET /context/conversations/{conversation_id}/processes")
async def list_processes(conversation_id: str, files: Service, caller: CallerDep) -> Listing[ProcessInfo]:
    """List the processes of a conversation that run, and the last ones that ended."""
    workspace = await files.workspace(caller, conversation_id)
    return Listing[ProcessInfo](items=await workspace.processes())


@operations.add("process.read", "GET /context/conversations/{conversation_id}/processes/{process_id}")
async def read_process(
    conversation_id: str, process_id: ProcessId, files: Service, caller: CallerDep, after: After = None
) -> ProcessOutput:
    """Read the output of a process after `after` bytes, or its last part."""
    workspace = await files.workspace(caller, conversation_id)
    return await workspace.process_output(process_id, after)


@operations.add("process.stop", "POST /context/conversations/{conversation_id}/processes/{process_id}/stop")
async def stop_process(
    conversation_id: str, process_id: ProcessId, files: Service, caller: CallerDep
) -> ProcessInfo:
    """Stop a process with all that it has started; the model is notified with its next result."""
    workspace = await files.workspace(caller, conversation_id)
    return await workspace.stop_process(process_id)
