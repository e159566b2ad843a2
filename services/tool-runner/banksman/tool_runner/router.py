"""The requests that a runner serves: calls, cancellations and files."""

from __future__ import annotations

from faststream import ExceptionMiddleware
from faststream.nats import NatsRouter

from banksman.bus.control import CONCURRENCY, Received
from banksman.contracts import subjects
from banksman.contracts.calls import CallReply, CallRequest, CancelCall, FileReply, FileRequest
from banksman.contracts.errors import BanksmanError
from banksman.contracts.subjects import ANY
from banksman.tool_runner.worker import Worker
from banksman.tool_runner.workspaces.files_api import FilesApi


def runner_router(runner: str, worker: Worker, files: FilesApi) -> NatsRouter:
    """Return the handlers of one runner."""
    router = NatsRouter()

    @router.subscriber(subjects.tool_call(runner, ANY, ANY), max_workers=CONCURRENCY, title="tool.call")
    async def call(request: CallRequest, message: Received) -> CallReply:
        """Run a call, once. The reply states whether it is accepted; its result is published as an event."""
        return worker.on_call(request, message.subject)

    @router.subscriber(subjects.tool_cancel(runner, ANY, ANY), max_workers=CONCURRENCY, title="tool.cancel")
    async def cancel(request: CancelCall, message: Received) -> CallReply:
        """End a call and store its result."""
        return worker.on_cancel(request, message.subject)

    router.include_router(_file_router(runner, files))
    return router


def _file_router(runner: str, files: FilesApi) -> NatsRouter:
    # Clients of files read `error` in a reply, and know no error envelope.
    refusals = ExceptionMiddleware()
    router = NatsRouter(middlewares=(refusals,))

    @refusals.add_handler(BanksmanError, publish=True)
    async def refuse(error: BanksmanError) -> FileReply:
        return FileReply(error=str(error))

    @router.subscriber(subjects.files(runner, ANY, ANY), max_workers=CONCURRENCY, title="file")
    async def file(request: FileRequest, message: Received) -> FileReply:
        """List, read, write and delete files of a workspace."""
        return await files.respond(request, message.subject)

    return router
