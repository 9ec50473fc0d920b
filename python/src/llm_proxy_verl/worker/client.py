"""The inference worker: connects to one or several proxies and serves their requests with an engine."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from .engine import Engine
from .frames import PROTOCOL_VERSION, Frame
from .link import ProxyLink

logger = logging.getLogger(__name__)

#: The ``capabilities`` of docs/worker-protocol.md that this worker has.
_CAPABILITIES = ("alive", "cancel", "details", "images", "resume", "status", "token_ids")
#: Proxies compare tokenizers by the ids of this text. A proxy that uses another text skips the comparison.
TOKENIZER_TEXT = (
    "The quick brown fox: 1234567890, 3.14159\n\tdef f(x):  return x**2\n\n"
    "À Zürich, naïve façade; Привет, мир; 你好,世界; こんにちは; 안녕하세요; مرحبا بالعالم; नमस्ते 🙂👍"
)
#: Interval at which the worker checks whether its status has changed.
_STATUS_INTERVAL_S = 1.0


class InferenceWorkerClient:
    """A worker that offers an engine to proxies in relay mode.

    The worker belongs to the event loop in which :meth:`start` is called. It reconnects after each disconnection and
    resumes running requests.

    :param proxy_urls: base URLs of proxies: ``http(s)://`` or ``ws(s)://``, with or without ``/ws/worker``
    :param worker_id: an id that is unique among the workers of each proxy; 1 to 200 characters
    :param max_concurrency: number of concurrent requests, over all proxies
    :param api_keys: worker keys, if proxies require one; if one is rejected, the next is tried
    :param draw: like ``random.random``; determines the delays between connection attempts
    """

    def __init__(
        self,
        proxy_urls: Sequence[str],
        engine: Engine,
        *,
        worker_id: str,
        max_concurrency: int = 1024,
        api_keys: Sequence[str] = (),
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.worker_id = worker_id
        self._engine = engine
        self._max_concurrency = max_concurrency
        #: Identifies this run of the worker to proxies, which keep its requests while it is disconnected.
        self._epoch = time.time_ns() // 1_000_000
        ids = engine.text_ids(TOKENIZER_TEXT)
        tokenizer = {"name": worker_id, "models": [], "ids": ids}
        self._text_ids: Frame = (
            {} if ids is None else {"text_ids": {"text": TOKENIZER_TEXT, "engines": [tokenizer]}}
        )
        self._draining = False
        self._last_status: Frame | None = None
        slots = asyncio.Semaphore(max_concurrency)
        self._links = [
            ProxyLink(
                worker_socket_url(url),
                api_keys=api_keys,
                engine=engine,
                identity=self._identity,
                status=self._status,
                slots=slots,
                draw=draw,
            )
            for url in proxy_urls
        ]
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connects to all proxies, and reconnects until :meth:`stop`.

        Must be called once, in a running event loop.
        """
        self._running = asyncio.create_task(self._run(), name=f"llm-proxy worker {self.worker_id}")

    async def wait_connected(self, timeout_s: float) -> bool:
        """Waits until all proxies have accepted this worker; returns whether they have before the timeout."""
        waits = [asyncio.ensure_future(link.connected.wait()) for link in self._links]
        _, pending = await asyncio.wait(waits, timeout=timeout_s)
        for wait in pending:
            wait.cancel()
        return not pending

    async def stop(self, grace_s: float | None = None) -> bool:
        """Rejects new requests, completes running requests, and disconnects.

        :param grace_s: time after which running requests are cancelled; ``None``: no limit
        :returns: whether each request was either delivered or cancelled by its proxy
        """
        self._draining = True
        drains = [asyncio.create_task(link.drain()) for link in self._links]
        done, pending = await asyncio.wait(drains, timeout=grace_s)
        for drain in pending:
            drain.cancel()
        for link in self._links:
            link.stop()
        if self._running is not None:
            await self._running
        return not pending and all(drain.result() for drain in done)

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            watch = asyncio.create_task(self._watch_status())
            try:
                await asyncio.gather(*(link.run(http) for link in self._links))
            finally:
                watch.cancel()

    async def _watch_status(self) -> None:
        while True:
            await asyncio.sleep(_STATUS_INTERVAL_S)
            status = self._status()
            if status != self._last_status:
                for link in self._links:
                    link.send_status()
            self._last_status = status

    def _identity(self) -> Frame:
        return {
            "type": "worker_hello",
            "worker_id": self.worker_id,
            "protocol": PROTOCOL_VERSION,
            "capabilities": list(_CAPABILITIES),
            # The worker has one model, the one that is trained, and serves it under any name.
            "models": [],
            "max_concurrency": self._max_concurrency,
            "weight_version": self._engine.weight_version,
            "healthy": True,
            "epoch": self._epoch,
            **self._text_ids,
        }

    def _status(self) -> Frame:
        return {
            "type": "worker_status",
            "healthy": True,
            "load": sum(link.request_count for link in self._links),
            "models": [],
            "weight_version": self._engine.weight_version,
            "draining": self._draining,
            **self._text_ids,
        }


def worker_socket_url(proxy_url: str) -> str:
    """Returns the URL of the ``/ws/worker`` endpoint of a proxy."""
    parts = urlsplit(proxy_url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    path = parts.path.rstrip("/").removesuffix("/ws/worker")
    return urlunsplit((scheme, parts.netloc, f"{path}/ws/worker", "", ""))
