"""Resources that the agent loops of a process share: connections, and the worker that offers verl's engines.

verl creates an agent loop for each sample, and runs those of one process in one event loop. The resources therefore
belong to the event loop: they are created on first use and exist until :func:`close` or the end of the process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import weakref
from collections.abc import Callable, Sequence

from llm_proxy import AsyncClient, ProxyApiError

from .config import RemoteAgentConfig
from .reward_groups import RewardGroups
from .verl_engine import LLMClient, VerlEngine
from .worker.client import InferenceWorkerClient

logger = logging.getLogger(__name__)

_per_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, SharedResources] = weakref.WeakKeyDictionary()
#: The number of workers that this process has created, for unique worker ids.
_worker_count = 0


class SharedResources:
    """The resources of one event loop."""

    def __init__(self) -> None:
        self.reward_groups = RewardGroups()
        self._workers: dict[LLMClient, InferenceWorkerClient] = {}
        self._modes: dict[str, str] = {}
        self._clients: dict[tuple[str, str | None], AsyncClient] = {}

    def get_rollout_client(self, config: RemoteAgentConfig) -> AsyncClient:
        """Returns the client that runs rollouts with these options."""
        urls = config.rollout_servers or config.proxy_urls
        return self._get_client(",".join(urls), next(iter(config.admin_key), None))

    def _get_client(self, url: str, key: str | None = None) -> AsyncClient:
        if (url, key) not in self._clients:
            self._clients[url, key] = AsyncClient(url, key)
        return self._clients[url, key]

    async def offer_engine(
        self, config: RemoteAgentConfig, client: LLMClient, create_engine: Callable[[], VerlEngine]
    ) -> None:
        """Starts a worker for ``client``, unless it has one or no proxy is in relay mode."""
        if client in self._workers or config.worker is False:
            return
        urls = list(config.proxy_urls) if config.worker else await self._find_relay_proxies(config.proxy_urls)
        if client in self._workers or not urls:
            return
        worker = InferenceWorkerClient(
            urls,
            create_engine(),
            worker_id=_new_worker_id(),
            max_concurrency=config.worker_concurrency,
            api_keys=config.worker_key,
        )
        self._workers[client] = worker
        worker.start()
        logger.info("worker %s offers verl's engines to %s", worker.worker_id, ", ".join(urls))

    async def close(self) -> None:
        """Drains the workers and closes all connections."""
        for worker in self._workers.values():
            await worker.stop(grace_s=10)
        for client in self._clients.values():
            await client.close()

    async def _find_relay_proxies(self, urls: Sequence[str]) -> list[str]:
        """Returns the URLs of proxies in relay mode, including unavailable proxies.

        A proxy in local mode rejects the worker.
        """
        for url in urls:
            if url in self._modes:
                continue
            try:
                self._modes[url] = str((await self._get_client(url).health())["mode"])
            except (ProxyApiError, KeyError, TypeError) as error:
                logger.warning("the mode of the proxy at %s is unknown: %s", url, error)
        return [url for url in urls if self._modes.get(url, "relay") == "relay"]


def shared_resources() -> SharedResources:
    """Returns the resources of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _per_loop:
        _per_loop[loop] = SharedResources()
    return _per_loop[loop]


async def close() -> None:
    """Closes the resources of the running event loop; another loop creates new ones."""
    shared = _per_loop.pop(asyncio.get_running_loop(), None)
    if shared is not None:
        await shared.close()


def _new_worker_id() -> str:
    global _worker_count
    _worker_count += 1
    host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())[:150]
    return f"verl-{host}-{os.getpid()}-{_worker_count}"
