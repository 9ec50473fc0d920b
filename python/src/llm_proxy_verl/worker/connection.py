"""The worker's side of one WebSocket: sends the hello, waits for the ack, closes the socket if the proxy is silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp

from . import frames

_CLOSE_TIMEOUT_S = 2.0
_ENDED = frozenset({aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED})


@dataclass(frozen=True)
class ConnectionEnd:
    """The outcome of a connection."""

    #: Duration of the connection after the ack; 0: there was no ack.
    held_s: float
    #: The WebSocket close code; 0: there was none.
    code: int
    reason: str
    #: The proxy requires a key, or another one.
    key_refused: bool = False


class ProxyConnection:
    """One connection, from dialling to its end."""

    def __init__(
        self,
        *,
        hello: Callable[[], frames.Frame],
        greeted: Callable[[frames.HelloAck], None],
        received: Callable[[frames.Frame], None],
    ) -> None:
        self._hello = hello
        self._greeted = greeted
        self._received = received
        #: Frames in the order of sending; ``None`` disconnects.
        self._outbox: asyncio.Queue[str | None] = asyncio.Queue()
        self._greeted_at: float | None = None
        self._silence_s = frames.HELLO_TIMEOUT_S

    def send(self, text: str) -> None:
        """Sends a frame after all earlier ones."""
        self._outbox.put_nowait(text)

    def leave(self) -> None:
        """Disconnects after all earlier frames are sent: the proxy does not wait for this worker to return."""
        self._outbox.put_nowait(None)

    async def run(self, http: aiohttp.ClientSession, url: str, api_key: str | None) -> ConnectionEnd:
        """Dials, and returns when the connection is closed. Raises only on a cancellation."""
        code, reason, key_refused = 0, "", False
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        try:
            socket = await asyncio.wait_for(self._dial(http, url, headers), frames.HELLO_TIMEOUT_S)
            try:
                reason = await self._talk(socket)
            finally:
                # Waits for the other side's close, so that the proxy has noticed the disconnection when this returns.
                await socket.close(code=frames.CLOSE_DONE)
                code = socket.close_code or 0
        except asyncio.TimeoutError:
            reason = f"no answer within {frames.HELLO_TIMEOUT_S:g} s"
        except aiohttp.WSServerHandshakeError as error:
            key_refused = error.status in (401, 403)
            reason = f"HTTP {error.status} and no WebSocket"
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
        held_s = 0.0 if self._greeted_at is None else time.monotonic() - self._greeted_at
        return ConnectionEnd(held_s, code, reason, key_refused)

    async def _dial(
        self, http: aiohttp.ClientSession, url: str, headers: Mapping[str, str]
    ) -> aiohttp.ClientWebSocketResponse:
        # Without autoping, because the detection of silence needs the pings.
        return await http.ws_connect(
            url,
            headers=headers,
            autoping=False,
            compress=0,
            max_msg_size=frames.MAX_FRAME_BYTES,
            timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_TIMEOUT_S),
        )

    async def _talk(self, socket: aiohttp.ClientWebSocketResponse) -> str:
        """Returns the reason for the end of the exchange, if this side knows it; the socket may still be open."""
        await socket.send_str(frames.dump_frame(self._hello()))
        reader, writer = asyncio.create_task(self._read(socket)), asyncio.create_task(self._write(socket))
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            return reader.result() if reader.done() else writer.result()
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> str:
        try:
            while (text := await self._outbox.get()) is not None:
                await socket.send_str(text)
        except (ConnectionError, aiohttp.ClientError) as error:
            return str(error)
        return "the worker has finished"

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> str:
        while True:
            try:
                message = await socket.receive(timeout=self._silence_s)
            except asyncio.TimeoutError:
                return f"the proxy was silent for {self._silence_s:g} s"
            if message.type in _ENDED:
                # The message's `extra` is the reason of a close frame.
                return str(message.extra or "")
            if message.type is aiohttp.WSMsgType.ERROR:
                return str(message.data)
            if message.type is aiohttp.WSMsgType.PING:
                await socket.pong(message.data)
            elif message.type is not aiohttp.WSMsgType.PONG:
                try:
                    self._receive(message)
                except frames.BadFrameError as error:
                    reason = f"the proxy sent an invalid frame: {error}"
                    await socket.close(code=frames.CLOSE_PROTOCOL_ERROR, message=reason.encode()[:120])
                    return reason

    def _receive(self, message: aiohttp.WSMessage) -> None:
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise frames.BadFrameError("not text")
        frame = frames.parse_frame(message.data)
        if frame["type"] == "ping":
            self.send('{"type":"pong"}')
        elif self._greeted_at is not None:
            self._received(frame)
        else:
            ack = frames.parse_hello_ack(frame)
            self._greeted_at = time.monotonic()
            self._silence_s = ack.heartbeat_s * frames.MISSED_HEARTBEATS
            self._greeted(ack)
