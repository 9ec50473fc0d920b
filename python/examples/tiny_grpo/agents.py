"""Serves the webhook of ``llm-proxy rollout --runner http``: runs agents concurrently and sends their rewards.

Started as ``python -m tiny_grpo.agents``; the first line of its output is the URL to post tasks to.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import aiohttp
from aiohttp import web
from openai import AsyncOpenAI

from .agent import solve
from .tasks import judge


class Agents:
    """The running agents."""

    def __init__(self, habits: dict[str, bool]) -> None:
        self._habits = habits
        self._client = AsyncOpenAI(api_key="none", base_url="http://127.0.0.1", timeout=120)
        self._running: set[asyncio.Task[None]] = set()

    async def start(self, request: web.Request) -> web.Response:
        """``POST /`` with the webhook's body, docs/runners.md."""
        running = asyncio.create_task(self._run(await request.json()))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return web.json_response({})

    async def _run(self, job: dict[str, Any]) -> None:
        client = self._client.with_options(base_url=job["openai_base_url"], api_key=job["api_key"])
        session = job["openai_base_url"].removesuffix("/v1")
        proxy, _, name = session.rpartition("/")
        session = f"{proxy}/sessions/{name}"
        async with aiohttp.ClientSession(raise_for_status=True) as http:
            try:
                answer = await solve(client, job["task"]["prompt"], **self._habits)
                reward = judge(answer, job["task"]["answer"])
                await http.post(f"{session}/reward", json={"reward": reward})
                await http.post(f"{session}/complete")
            except Exception as error:  # The rollout retries an aborted sample, whatever the error.
                print(f"agent of {name}: {error!r}", file=sys.stderr, flush=True)
                await http.post(f"{session}/abort")


async def main() -> None:
    """Serves until the process is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tidy", action="store_true")
    parser.add_argument("--noisy", action="store_true")
    agents = Agents(vars(parser.parse_args()))
    app = web.Application()
    app.router.add_post("/", agents.start)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    print(f"http://{host}:{port}/", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
