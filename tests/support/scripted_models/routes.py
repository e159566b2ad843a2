"""The routes of the model server, which also play scripts."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from banksman.model_server.app import DEMO_MODEL, ModelRoutes
from banksman.model_server.chat import ChatRequest
from banksman.model_server.delivery import Exchange
from banksman.model_server.replies import Reply
from tests.support.scripted_models.delivery import Gates, ReplySender
from tests.support.scripted_models.playing import ChosenReply, Scripts, resolve_reply
from tests.support.scripted_models.script import RawReply, Script, ScriptedReply


class ScriptRoutes(ModelRoutes):
    """The routes of the model server with the models `scripted/<name>`, which play scripts."""

    def __init__(self, chunk_delay_s: float, scripts: Mapping[str, Script]) -> None:
        super().__init__(chunk_delay_s)
        self.scripts = Scripts(scripts)
        self.gates = Gates()

    def names(self) -> list[str]:
        """Return the names of all models."""
        return [*super().names(), *self.scripts.models()]

    async def answer(self, chat: ChatRequest, exchange: Exchange) -> web.StreamResponse:
        """Send the reply of the demo model or of a script."""
        if chat.model == DEMO_MODEL:
            return await super().answer(chat, exchange)
        return await self.deliver(self.scripts.reply(chat), chat, exchange)

    async def deliver(self, chosen: ChosenReply, chat: ChatRequest, exchange: Exchange) -> web.StreamResponse:
        """Send the reply of a script."""
        sender = ReplySender(exchange, self.gates)
        if isinstance(chosen.reply, RawReply):
            return await sender.send_raw(chosen.reply)
        return await sender.send(chosen.reply, self.resolve(chosen, chosen.reply, chat), chat)

    def resolve(self, chosen: ChosenReply, reply: ScriptedReply, chat: ChatRequest) -> Reply:
        """Return a reply with its call ids, finish reason and usage."""
        return resolve_reply(reply, chat, derived_ids_of=chosen.derived_ids_of)
