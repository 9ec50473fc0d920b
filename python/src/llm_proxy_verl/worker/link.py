"""The link of a worker to one proxy: a connection, and the requests, which continue after a reconnect."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Sequence

import aiohttp

from ..errors import CallError
from . import frames
from .backoff import keep_connected
from .connection import ConnectionEnd, ProxyConnection
from .engine import Engine
from .frames import BadFrameError, CompletionRequest, Frame, HelloAck
from .served_request import ServedRequest

logger = logging.getLogger(__name__)

#: Requests that run longer than this are no longer reported as running, because the engine has probably hung.
_MAX_SILENCE_S = 1800.0


class ProxyLink:
    """The link to one proxy, which serves the requests of that proxy.

    :param url: URL of the ``/ws/worker`` endpoint
    :param identity: returns the hello without its ``requests``
    :param status: returns the current ``worker_status`` frame
    :param slots: limits concurrent requests of all links of the worker
    """

    def __init__(
        self,
        url: str,
        *,
        api_keys: Sequence[str],
        engine: Engine,
        identity: Callable[[], Frame],
        status: Callable[[], Frame],
        slots: asyncio.Semaphore,
        draw: Callable[[], float],
    ) -> None:
        self.url = url
        self._api_keys = api_keys
        #: The number of times that a key was rejected.
        self._rejected_keys = 0
        self._engine = engine
        self._identity = identity
        self._status = status
        self._slots = slots
        self._draw = draw
        self._requests: dict[str, ServedRequest] = {}
        self._connection: ProxyConnection | None = None
        self._ack: HelloAck | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._alive: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Event()
        self._draining = False
        self._dropped_requests = False
        self._idle = asyncio.Event()
        self._idle.set()
        #: Set while this worker is connected and accepted by the proxy.
        self.connected = asyncio.Event()

    @property
    def request_count(self) -> int:
        """The number of requests that are running or not yet acknowledged."""
        return len(self._requests)

    async def run(self, http: aiohttp.ClientSession) -> None:
        """Maintains the connection until :meth:`stop`."""
        await keep_connected(lambda: self._connect(http), self._stopping, draw=self._draw)

    async def drain(self) -> bool:
        """Rejects new requests and waits until no request is left.

        :returns: whether each request was either delivered or cancelled by the proxy
        """
        self._draining = True
        self.send_status()
        await self._idle.wait()
        return not self._dropped_requests

    def stop(self) -> None:
        """Cancels running requests and closes the connection."""
        self._stopping.set()
        self._cancel_all()
        if self._grace is not None:
            self._grace.cancel()
        if self._connection is not None:
            self._connection.disconnect()

    def send_status(self, answers: int | None = None) -> None:
        """Sends the worker's status, if connected.

        :param answers: the number of the ``worker_status_request`` to which the status responds
        """
        status = self._status()
        self._send(frames.dump_frame(status if answers is None else {**status, "answers": answers}))

    async def _connect(self, http: aiohttp.ClientSession) -> float:
        connection = ProxyConnection(hello=self._hello, on_ack=self._resume, on_frame=self._receive)
        self._connection = connection
        try:
            end = await connection.run(http, self.url, self._next_key())
        finally:
            self._connection = None
            self._on_disconnect()
        self._rejected_keys += end.key_rejected
        self._log_end(end)
        return end.duration_s

    def _next_key(self) -> str | None:
        return self._api_keys[self._rejected_keys % len(self._api_keys)] if self._api_keys else None

    def _log_end(self, end: ConnectionEnd) -> None:
        if end.key_rejected:
            logger.error("%s rejects the worker key: %s", self.url, end.reason)
        elif not self._stopping.is_set():
            logger.warning("no connection to %s: %s (close code %d)", self.url, end.reason, end.code)

    def _hello(self) -> Frame:
        return {**self._identity(), "requests": list(self._requests)}

    def _resume(self, ack: HelloAck) -> None:
        """Resumes the requests that the proxy has kept, after the last frame that it received; cancels the others."""
        if self._grace is not None:
            self._grace.cancel()
        self._ack = ack
        for served in list(self._requests.values()):
            received = ack.received.get(served.request_id)
            if received is None:
                self._cancel(served)
                continue
            for text in served.get_frames_after(received):
                self._send(text)
            served.resize_window(ack.window_bytes)
        self.send_status()
        if ack.alive_s is not None:
            self._report_alive(ack.alive_s)
        self.connected.set()
        logger.info("connected to %s", self.url)

    def _report_alive(self, every_s: float) -> None:
        """Reports running requests periodically.

        Responses are not streamed: without reports, the proxy cannot distinguish a long request from a lost one.
        """

        def report() -> None:
            since = time.monotonic() - _MAX_SILENCE_S
            running = [
                c.request_id for c in self._requests.values() if not c.has_ended and c.started_at > since
            ]
            if running:
                self._send(frames.dump_alive(running))
            self._report_alive(every_s)

        if self._alive is not None:
            self._alive.cancel()
        self._alive = asyncio.get_running_loop().call_later(every_s, report)

    def _on_disconnect(self) -> None:
        """Cancels all requests after the grace period, at whose end the proxy fails them."""
        self.connected.clear()
        if self._alive is not None:
            self._alive.cancel()
        if self._ack is None:
            return
        self._grace = asyncio.get_running_loop().call_later(self._ack.grace_s, self._on_grace_expired)
        self._ack = None

    def _on_grace_expired(self) -> None:
        self._dropped_requests = self._draining and len(self._requests) > 0
        self._cancel_all()

    def _receive(self, frame: Frame) -> None:
        """Handles a frame. Late frames, for requests that are no longer running, are ignored."""
        kind, request_id = frame["type"], frame.get("request_id")
        served = self._requests.get(request_id) if isinstance(request_id, str) else None
        if kind == "completion_request" and isinstance(request_id, str):
            self._begin(frame, request_id)
        elif kind == "completion_ack" and isinstance(frame.get("seq"), int):
            self._acknowledge(served, frame["seq"])
        elif kind == "completion_cancel":
            self._cancel(served)
        elif kind == "worker_status_request" and isinstance(frame.get("seq"), int):
            # The weight version is known from the latest response, so the engine is not queried.
            self.send_status(answers=frame["seq"])
        elif kind != "pong":
            logger.warning("ignored a frame of unknown type from %s: %.40s", self.url, kind)

    def _acknowledge(self, served: ServedRequest | None, seq: int) -> None:
        if served is not None:
            served.acknowledge(seq)
            if served.is_delivered:
                self._remove(served)

    def _begin(self, frame: Frame, request_id: str) -> None:
        """Starts a request, unless it is running already: proxies send requests again after a reconnect."""
        if request_id in self._requests or self._ack is None:
            return
        served = ServedRequest(request_id, self._ack.window_bytes)
        self._requests[request_id] = served
        self._idle.clear()
        try:
            request = frames.parse_request(frame)
        except BadFrameError as error:
            self._fail(served, CallError("invalid_request", f"invalid request: {error}"))
            return
        if self._draining:
            self._fail(served, CallError("shutting_down", "the worker is shutting down"))
        else:
            served.task = asyncio.create_task(self._serve(served, request))

    async def _serve(self, served: ServedRequest, request: CompletionRequest) -> None:
        """Serves a request. Errors are sent as the last frame; only cancellations by this link are raised."""
        try:
            async with self._slots:
                completion = await self._engine.generate(request)
            self._send(served.add(lambda seq: frames.dump_chunk(request, completion, seq)))
            await served.wait_for_room()
            self._send(served.end(lambda seq: frames.dump_response(request, completion, seq)))
        except CallError as error:
            self._fail(served, error)
        except asyncio.CancelledError:
            # Requests that this link cancels are removed first. Any other cancellation is the engine's.
            if served.request_id not in self._requests:
                raise
            self._fail(served, CallError("engine_lost", "verl's engine cancelled this completion"))
        except Exception as error:  # the engine may raise any exception
            kind, where = type(error).__name__, "".join(traceback.format_tb(error.__traceback__))
            # The message of the exception is omitted, because it may quote the prompt.
            logger.error(  # noqa: TRY400
                "request %s of session %s failed: %s\n%s", request.request_id, request.session_id, kind, where
            )
            message = f"{kind}: {error}"[:1000]
            self._fail(
                served, CallError("engine_failed", message, log_message=f"verl's engine failed: {kind}")
            )

    def _fail(self, served: ServedRequest, error: CallError) -> None:
        self._send(served.end(lambda seq: frames.dump_failure(served.request_id, error, seq)))

    def _cancel_all(self) -> None:
        for served in list(self._requests.values()):
            self._cancel(served)

    def _cancel(self, served: ServedRequest | None) -> None:
        if served is not None:
            self._remove(served)
            served.stop()

    def _remove(self, served: ServedRequest) -> None:
        self._requests.pop(served.request_id, None)
        if not self._requests:
            self._idle.set()

    def _send(self, text: str) -> None:
        """Sends a frame if the worker is connected; ``_resume`` sends frames that were missed."""
        if self._ack is not None and self._connection is not None:
            self._connection.send(text)
