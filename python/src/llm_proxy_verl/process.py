"""What all agent loops of a process share.

verl makes an agent loop for each sample, and runs those of one process in one event loop. So the connections, and the
worker that lends the proxies verl's engines, are the event loop's: made when they are first needed, and there until
:func:`close` or the end of the process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import weakref
from collections.abc import Callable, Sequence

import aiohttp

from .config import RemoteAgentConfig
from .rollout_client import RolloutClient, mode_of
from .verl_engine import LLMClient, VerlEngine
from .worker.client import InferenceWorkerClient

logger = logging.getLogger(__name__)

_per_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, SharedResources] = weakref.WeakKeyDictionary()
#: Numbers the workers of a process, whose ids must differ.
_workers_made = 0


class SharedResources:
    """Of one event loop."""

    def __init__(self) -> None:
        # As many connections as rollouts run: each waits until its agent has ended, which may take hours.
        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._workers: dict[LLMClient, InferenceWorkerClient] = {}
        self._modes: dict[str, str] = {}
        self._rollouts: dict[tuple[tuple[str, ...], str | None], RolloutClient] = {}

    def rollouts(self, config: RemoteAgentConfig) -> RolloutClient:
        """What runs the agents of these options."""
        where = (config.rollout_servers or config.proxy_urls, next(iter(config.admin_key), None))
        if where not in self._rollouts:
            self._rollouts[where] = RolloutClient(where[0], self.http, where[1])
        return self._rollouts[where]

    async def lend_engine(
        self, config: RemoteAgentConfig, client: LLMClient, make_engine: Callable[[], VerlEngine]
    ) -> None:
        """Starts a worker for ``client``, unless it has one or the proxies reach engines themselves."""
        if client in self._workers or config.worker is False:
            return
        urls = list(config.proxy_urls) if config.worker else await self._in_relay_mode(config.proxy_urls)
        if client in self._workers or not urls:
            return
        worker = InferenceWorkerClient(
            urls,
            make_engine(),
            worker_id=_new_worker_id(),
            max_concurrency=config.worker_concurrency,
            api_keys=config.worker_key,
        )
        self._workers[client] = worker
        worker.start()
        logger.info("worker %s lends verl's engines to %s", worker.worker_id, ", ".join(urls))

    async def close(self) -> None:
        """Lets workers finish what they have, and closes every connection."""
        for worker in self._workers.values():
            await worker.stop(grace_s=10)
        await self.http.close()

    async def _in_relay_mode(self, urls: Sequence[str]) -> list[str]:
        """A proxy that is away is dialled: if it turns out to reach engines itself, it refuses the worker."""
        for url in urls:
            if url not in self._modes and (mode := await mode_of(url, self.http)) is not None:
                self._modes[url] = mode
        return [url for url in urls if self._modes.get(url, "relay") == "relay"]


def shared_resources() -> SharedResources:
    """Those of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _per_loop:
        _per_loop[loop] = SharedResources()
    return _per_loop[loop]


async def close() -> None:
    """Ends what the running event loop's agent loops share; another one begins anew."""
    shared = _per_loop.pop(asyncio.get_running_loop(), None)
    if shared is not None:
        await shared.close()


def _new_worker_id() -> str:
    global _workers_made
    _workers_made += 1
    host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())[:150]
    return f"verl-{host}-{os.getpid()}-{_workers_made}"
