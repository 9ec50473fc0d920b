"""A worker's life with one proxy: the connection, kept up, and the calls, which outlive it."""

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

#: An engine that has worked on one call for so long counts as hung: nobody vouches for it any more.
_MAX_SILENCE_S = 1800.0


class ProxyLink:
    """Serves the calls of one proxy.

    :param url: of the proxy's ``/ws/worker``
    :param identity: what the hello says of the worker, beside the calls that it holds
    :param status: the ``worker_status`` of this moment
    :param slots: calls served at once, shared by all links of the worker
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
        #: How many keys were refused.
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
        #: Set while the proxy has this worker.
        self.connected = asyncio.Event()

    @property
    def call_count(self) -> int:
        """Calls that run here or wait for their acknowledgement."""
        return len(self._calls)

    async def run(self, http: aiohttp.ClientSession) -> None:
        """Stays connected until :meth:`stop`."""
        await keep_connected(lambda: self._connect(http), self._stopping, draw=self._draw)

    async def drain(self) -> bool:
        """Takes nothing new, and returns when no call is left: whether each was delivered or given up by its proxy."""
        self._draining = True
        self.send_status()
        await self._idle.wait()
        return not self._dropped_calls

    def stop(self) -> None:
        """Ends what still runs, and the connection."""
        self._stopping.set()
        self._abandon_all()
        if self._grace is not None:
            self._grace.cancel()
        if self._connection is not None:
            self._connection.leave()

    def send_status(self, answers: int | None = None) -> None:
        """Tells the proxy how the worker is, if there is a connection.

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
        """Calls that the proxy still wants go on where it stopped hearing of them; the others end."""
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
            self._tell_alive(ack.alive_s)
        self.connected.set()
        logger.info("connected to %s", self.url)

    def _tell_alive(self, every_s: float) -> None:
        """An answer comes whole, after minutes perhaps; the proxy cannot tell that from a call that was lost."""

        def tell() -> None:
            since = time.monotonic() - _MAX_SILENCE_S
            running = [c.request_id for c in self._calls.values() if not c.has_ended and c.begun_at > since]
            if running:
                self._send(frames.alive_frame(running))
            self._tell_alive(every_s)

        if self._alive is not None:
            self._alive.cancel()
        self._alive = asyncio.get_running_loop().call_later(every_s, tell)

    def _await_return(self) -> None:
        """The connection is gone. When the grace time is over the proxy has failed the calls, and they end here too."""
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
        """What belongs to no call that runs comes late and changes nothing."""
        kind, request_id = frame["type"], frame.get("request_id")
        call = self._calls.get(request_id) if isinstance(request_id, str) else None
        if kind == "completion_request" and isinstance(request_id, str):
            self._begin(frame, request_id)
        elif kind == "completion_ack" and isinstance(frame.get("seq"), int):
            self._acknowledge(call, frame["seq"])
        elif kind == "completion_cancel":
            self._abandon(call)
        elif kind == "worker_status_request" and isinstance(frame.get("seq"), int):
            # verl tells its weights with each answer: there is nothing to ask.
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
        """A request that is here already has come again with a reconnect: it is being served."""
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
        """Never raises but for a cancellation: whatever goes wrong becomes the last frame."""
        try:
            async with self._slots:
                completion = await self._engine.generate(request)
            self._send(call.add(lambda seq: frames.chunk_frame(request, completion, seq)))
            await call.room()
            self._send(call.end(lambda seq: frames.response_frame(request, completion, seq)))
        except CallError as error:
            self._fail(call, error)
        except asyncio.CancelledError:
            # A call that was given up here is forgotten before its task is cancelled: this one its engine gave up.
            if call.request_id not in self._calls:
                raise
            self._fail(call, CallError("engine_lost", "verl's engine cancelled this completion"))
        except Exception as error:  # the engine's, of whatever kind
            kind, where = type(error).__name__, "".join(traceback.format_tb(error.__traceback__))
            # Not its message, which may quote the prompt.
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
        """Without a connection, or before its ack, nothing is sent: the ack brings up what the proxy lacks."""
        if self._ack is not None and self._connection is not None:
            self._connection.send(text)
