"""The link of a worker to one proxy: the connection, which is re-established, and the requests, which outlive it."""

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
from .served_call import ServedCall

logger = logging.getLogger(__name__)

#: An engine that processes one request for this long is considered hung: the request is no longer reported as running.
_MAX_SILENCE_S = 1800.0


class ProxyLink:
    """Serves the requests of one proxy.

    :param url: URL of the proxy's ``/ws/worker``
    :param identity: fields of the hello that describe the worker, besides its requests
    :param status: returns the current ``worker_status``
    :param slots: concurrent requests, shared by all links of the worker
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
        #: Number of rejected keys.
        self._refusals = 0
        self._engine = engine
        self._identity = identity
        self._status = status
        self._slots = slots
        self._draw = draw
        self._calls: dict[str, ServedCall] = {}
        self._connection: ProxyConnection | None = None
        self._ack: HelloAck | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._alive: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Event()
        self._draining = False
        self._dropped_calls = False
        self._idle = asyncio.Event()
        self._idle.set()
        #: Set while the proxy has accepted this worker.
        self.connected = asyncio.Event()

    @property
    def call_count(self) -> int:
        """Number of requests that are running or wait for their acknowledgement."""
        return len(self._calls)

    async def run(self, http: aiohttp.ClientSession) -> None:
        """Maintains the connection until :meth:`stop`."""
        await keep_connected(lambda: self._connect(http), self._stopping, draw=self._draw)

    async def drain(self) -> bool:
        """Rejects new requests; returns when no request is left, with whether each was delivered or cancelled by its
        proxy.
        """
        self._draining = True
        self.send_status()
        await self._idle.wait()
        return not self._dropped_calls

    def stop(self) -> None:
        """Cancels running requests and closes the connection."""
        self._stopping.set()
        self._abandon_all()
        if self._grace is not None:
            self._grace.cancel()
        if self._connection is not None:
            self._connection.leave()

    def send_status(self, answers: int | None = None) -> None:
        """Sends the worker's status, if connected.

        :param answers: the number of the proxy's request for it
        """
        status = self._status()
        self._send(frames.dump_frame(status if answers is None else {**status, "answers": answers}))

    async def _connect(self, http: aiohttp.ClientSession) -> float:
        connection = ProxyConnection(hello=self._hello, greeted=self._resume, received=self._receive)
        self._connection = connection
        try:
            end = await connection.run(http, self.url, self._next_key())
        finally:
            self._connection = None
            self._await_return()
        self._refusals += end.key_refused
        self._log_end(end)
        return end.held_s

    def _next_key(self) -> str | None:
        return self._api_keys[self._refusals % len(self._api_keys)] if self._api_keys else None

    def _log_end(self, end: ConnectionEnd) -> None:
        if end.key_refused:
            logger.error("%s refuses the worker key: %s", self.url, end.reason)
        elif not self._stopping.is_set():
            logger.warning("no connection to %s: %s (close code %d)", self.url, end.reason, end.code)

    def _hello(self) -> Frame:
        return {**self._identity(), "requests": list(self._calls)}

    def _resume(self, ack: HelloAck) -> None:
        """Resumes requests that the proxy still knows after the last frame that it received; cancels the others."""
        if self._grace is not None:
            self._grace.cancel()
        self._ack = ack
        for call in list(self._calls.values()):
            received = ack.received.get(call.request_id)
            if received is None:
                self._abandon(call)
                continue
            for text in call.after(received):
                self._send(text)
            call.resize_window(ack.window_bytes)
        self.send_status()
        if ack.alive_s is not None:
            self._report_alive(ack.alive_s)
        self.connected.set()
        logger.info("connected to %s", self.url)

    def _report_alive(self, every_s: float) -> None:
        """Reports running requests periodically.

        A response is sent at once, possibly after minutes, and the proxy cannot distinguish that from a lost request.
        """

        def tell() -> None:
            since = time.monotonic() - _MAX_SILENCE_S
            running = [c.request_id for c in self._calls.values() if not c.has_ended and c.begun_at > since]
            if running:
                self._send(frames.alive_frame(running))
            self._report_alive(every_s)

        if self._alive is not None:
            self._alive.cancel()
        self._alive = asyncio.get_running_loop().call_later(every_s, tell)

    def _await_return(self) -> None:
        """Handles a disconnection.

        After the grace period the proxy has failed the requests, so they are cancelled here too.
        """
        self.connected.clear()
        if self._alive is not None:
            self._alive.cancel()
        if self._ack is None:
            return
        self._grace = asyncio.get_running_loop().call_later(self._ack.grace_s, self._give_up)
        self._ack = None

    def _give_up(self) -> None:
        self._dropped_calls = self._draining and len(self._calls) > 0
        self._abandon_all()

    def _receive(self, frame: Frame) -> None:
        """Handles a frame. Frames for requests that are not running are late and ignored."""
        kind, request_id = frame["type"], frame.get("request_id")
        call = self._calls.get(request_id) if isinstance(request_id, str) else None
        if kind == "completion_request" and isinstance(request_id, str):
            self._begin(frame, request_id)
        elif kind == "completion_ack" and isinstance(frame.get("seq"), int):
            self._acknowledge(call, frame["seq"])
        elif kind == "completion_cancel":
            self._abandon(call)
        elif kind == "worker_status_request" and isinstance(frame.get("seq"), int):
            # verl reports its weights with each response, so there is nothing to query.
            self.send_status(answers=frame["seq"])
        elif kind != "pong":
            logger.warning(
                "a frame of %s is ignored: it is not one that a proxy sends (%.40s)", self.url, kind
            )

    def _acknowledge(self, call: ServedCall | None, seq: int) -> None:
        if call is not None:
            call.acknowledge(seq)
            if call.is_delivered:
                self._forget(call)

    def _begin(self, frame: Frame, request_id: str) -> None:
        """Starts a request. A request that is already known was sent again after a reconnect and is being served."""
        if request_id in self._calls or self._ack is None:
            return
        call = ServedCall(request_id, self._ack.window_bytes)
        self._calls[request_id] = call
        self._idle.clear()
        try:
            request = frames.parse_request(frame)
        except BadFrameError as error:
            self._fail(call, CallError("invalid_request", f"bad request: {error}"))
            return
        if self._draining:
            self._fail(call, CallError("shutting_down", "the worker is shutting down"))
        else:
            call.task = asyncio.create_task(self._serve(call, request))

    async def _serve(self, call: ServedCall, request: CompletionRequest) -> None:
        """Serves a request. Raises only on a cancellation: an error becomes the last frame."""
        try:
            async with self._slots:
                completion = await self._engine.generate(request)
            self._send(call.add(lambda seq: frames.chunk_frame(request, completion, seq)))
            await call.room()
            self._send(call.end(lambda seq: frames.response_frame(request, completion, seq)))
        except CallError as error:
            self._fail(call, error)
        except asyncio.CancelledError:
            # A request that is cancelled here is removed before its task is cancelled: this one was cancelled by its
            # engine.
            if call.request_id not in self._calls:
                raise
            self._fail(call, CallError("engine_lost", "verl's engine cancelled this completion"))
        except Exception as error:  # the engine's, of whatever kind
            kind, where = type(error).__name__, "".join(traceback.format_tb(error.__traceback__))
            # Without its message, which may quote the prompt.
            logger.error(  # noqa: TRY400
                "call %s of session %s failed: %s\n%s", request.request_id, request.session_id, kind, where
            )
            message = f"{kind}: {error}"[:1000]
            self._fail(call, CallError("engine_failed", message, log_message=f"verl's engine failed: {kind}"))

    def _fail(self, call: ServedCall, error: CallError) -> None:
        self._send(call.end(lambda seq: frames.failure_frame(call.request_id, error, seq)))

    def _abandon_all(self) -> None:
        for call in list(self._calls.values()):
            self._abandon(call)

    def _abandon(self, call: ServedCall | None) -> None:
        if call is not None:
            self._forget(call)
            call.stop()

    def _forget(self, call: ServedCall) -> None:
        self._calls.pop(call.request_id, None)
        if not self._calls:
            self._idle.set()

    def _send(self, text: str) -> None:
        """Sends a frame. Does nothing without a connection or before its ack: missing frames are sent after the ack."""
        if self._ack is not None and self._connection is not None:
            self._connection.send(text)
