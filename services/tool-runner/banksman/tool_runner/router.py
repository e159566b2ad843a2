"""The subjects of a runner, and the functions that serve them."""

from __future__ import annotations

from faststream import ExceptionMiddleware
from faststream.nats import NatsRouter

from banksman.bus.control_plane.control import CONCURRENCY, Received
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError
from banksman.contracts.runner_requests import FileReply, FileRequest
from banksman.contracts.subjects import ANY
from banksman.tool_runner.execution import CallWorker
from banksman.tool_runner.workspaces.files_api import FilesApi


def runner_router(runner: str, worker: CallWorker, files: FilesApi) -> NatsRouter:
    router = NatsRouter()

    calls, cancels = subjects.tool_call(runner, ANY, ANY), subjects.tool_cancel(runner, ANY, ANY)
    router.subscriber(calls, max_workers=CONCURRENCY)(worker.call)
    router.subscriber(cancels, max_workers=CONCURRENCY)(worker.cancel)
    router.include_router(_file_router(runner, files))
    return router


def _file_router(runner: str, files: FilesApi) -> NatsRouter:
    # Gateways read `error` in the reply to a file request, and do not know the error envelope.
    refusals = ExceptionMiddleware()
    router = NatsRouter(middlewares=(refusals,))

    @refusals.add_handler(BanksmanError, publish=True)
    async def refuse(error: BanksmanError) -> FileReply:
        return FileReply(error=str(error))

    @router.subscriber(subjects.files(runner, ANY, ANY), max_workers=CONCURRENCY)
    async def file(request: FileRequest, message: Received) -> FileReply:
        """List, read, write and delete files of a workspace."""
        return await files.respond(request, message.subject)

    return router
