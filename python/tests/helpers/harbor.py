"""A fake Harbor server, written from the description of its API; agents are functions."""

from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp
from aiohttp import web

#: The rollout server of the tests knows this address only, on which the servers of the tests listen in sequence.
_SOCKET = socket.create_server(("127.0.0.1", 0))
HARBOR_URL = f"http://127.0.0.1:{_SOCKET.getsockname()[1]}"


@dataclass
class Agent:
    """The agent of a run: the run's metadata, and the number of earlier submissions of its task."""

    metadata: dict[str, Any]
    archive: bytes
    number: int
    http: aiohttp.ClientSession

    @property
    def base_url(self) -> str:
        url: str = self.metadata["agent"]["llm_proxy_url"]
        return url

    async def chat(self, messages: list[Any], **fields: Any) -> dict[str, Any]:
        """Sends one request as an OpenAI client does. Returns the assistant's message."""
        body = {"model": "any", "messages": messages, "max_tokens": 16, **fields}
        key = self.metadata["environment_overrides"]["OPENAI_API_KEY"]
        headers = {"Authorization": f"Bearer {key}"}
        async with self.http.post(
            f"{self.base_url}/chat/completions", json=body, headers=headers
        ) as response:
            body = await response.json()
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {body['error']['code']}")
            message: dict[str, Any] = body["choices"][0]["message"]
            return message

    async def converse(self, rounds: int, question: str = "What is the sea?") -> None:
        """Runs a conversation in which each request extends the previous one."""
        messages: list[Any] = [{"role": "user", "content": question}]
        for number in range(rounds):
            messages += [await self.chat(messages), {"role": "user", "content": f"And {number}?"}]


Run = Callable[[Agent], Awaitable[dict[str, Any]]]


def completed(**rewards: float) -> dict[str, Any]:
    return {"run_id": "r", "status": "completed", "rewards": rewards, "rollout_details": None, "error": None}


class HarborServer:
    """Runs `run` for each submission; an agent that raises has failed."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.agents: list[Agent] = []

    async def __aenter__(self) -> HarborServer:
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/api/v1/runs", self._submitted)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await self._runner.setup()
        await web.SockSite(self._runner, _SOCKET.dup()).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await self._http.close()

    async def _submitted(self, request: web.Request) -> web.Response:
        form = await request.post()
        upload = form["task_archive"]
        assert isinstance(upload, web.FileField)
        metadata = json.loads(str(form["metadata"]))
        number = sum(agent.metadata["task_path"] == metadata["task_path"] for agent in self.agents)
        agent = Agent(metadata, upload.file.read(), number, self._http)
        self.agents.append(agent)
        try:
            result = await self._run(agent)
        except RuntimeError as error:
            result = {"run_id": "r", "status": "failed", "rewards": None, "error": str(error)}
        response = web.json_response(result)
        # The server of the next test must not receive this connection.
        response.force_close()
        return response
