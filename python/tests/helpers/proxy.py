"""The real proxy and the real rollout server, started as processes, and the requests that tests send to them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import select
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

REPOSITORY = Path(__file__).parents[3]
#: The variable may name the proxy of an earlier version.
LAUNCHER = Path(os.environ.get("LLM_PROXY_LAUNCHER", REPOSITORY / "bin" / "llm-proxy"))
START_TIMEOUT_S = 60


@dataclass(frozen=True)
class Proxy:
    url: str
    pid: int
    #: The rollout server that runs agents for it, if it has one.
    rollouts_url: str = ""

    async def get(self, http: aiohttp.ClientSession, path: str) -> Any:
        async with http.get(self.url + path) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def turns(self, http: aiohttp.ClientSession, session_id: str) -> list[dict[str, Any]]:
        turns: list[dict[str, Any]] = (await self.get(http, f"/sessions/{session_id}"))["turns"]
        return turns

    async def worker_ids(self, http: aiohttp.ClientSession) -> list[str]:
        return [worker["worker_id"] for worker in await self.get(http, "/admin/workers")]

    async def wait_for_removal(self, http: aiohttp.ClientSession, worker_id: str) -> None:
        """Waits until the proxy has removed a worker, which it does shortly after the socket has closed."""
        for _ in range(500):
            if worker_id not in await self.worker_ids(http):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"the proxy still lists {worker_id}, which has left")

    async def chat(
        self, http: aiohttp.ClientSession, session_id: str, messages: list[Any], **fields: Any
    ) -> tuple[int, Any]:
        """Sends one request of an agent. Returns its status and body."""
        body = {"model": "any", "messages": messages, "max_tokens": 16, **fields}
        async with http.post(f"{self.url}/{session_id}/v1/chat/completions", json=body) as response:
            return response.status, await response.json()


@contextlib.contextmanager
def start_proxy(
    directory: Path, *flags: str, mode: str = "relay", token_mode: bool = True
) -> Iterator[Proxy]:
    """Starts a proxy on a free port with its database in `directory`; the end of the block stops it."""
    command = [str(LAUNCHER), "serve", "--port", "0", "--mode", mode, "--db", str(directory / "proxy.db")]
    command += ["--durability", "process", "--log-level", "warn", "--queue-wait", "10s", *flags]
    if token_mode:
        command += ["--tokenizer", "embedded"]
    with _started(command, directory / "proxy.log") as (url, pid):
        yield Proxy(url, pid)


@contextlib.contextmanager
def start_rollouts(directory: Path, proxy: Proxy, *flags: str) -> Iterator[Proxy]:
    """Adds a rollout server on a free port, which runs agents as the flags set; the end of the block stops it."""
    command = [str(LAUNCHER), "rollout", "--listen", "127.0.0.1:0", "--proxy-url", proxy.url]
    with _started([*command, "--concurrency", "100", *flags], directory / "rollouts.log") as (url, _):
        yield dataclasses.replace(proxy, rollouts_url=url)


@contextlib.contextmanager
def _started(command: list[str], log_file: Path) -> Iterator[tuple[str, int]]:
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command, env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
        )
    try:
        yield _read_url(process, log_file), process.pid
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            assert process.stdout is not None
            process.stdout.close()


def _environment() -> dict[str, str]:
    foreign = ("LLM_PROXY_", "PROXY_", "REMOTE_AGENT_", "HARBOR_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def _read_url(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if not select.select([process.stdout], [], [], 0.2)[0]:
            continue
        found = re.search(rb"listening on (http://\S+)", process.stdout.readline())
        if found:
            return found[1].decode()
    raise AssertionError(f"the process did not start (exit code {process.poll()}): {log.read_text()[-2000:]}")
