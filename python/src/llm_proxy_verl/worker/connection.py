"""One WebSocket connection of a worker: sends the hello, waits for the ack, and closes when the proxy is silent."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp

from . import frames

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 2.0
_ENDED = frozenset({aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED})


@dataclass(frozen=True)
class ConnectionEnd:
    """The outcome of a connection."""

    #: Duration of the connection after the ack; 0 without an ack.
    duration_s: float
    #: The WebSocket close code; 0 without one.
    code: int
    reason: str
    #: Whether the proxy rejected the worker key, or requires one.
    key_rejected: bool = False


class ProxyConnection:
    """A connection, from dialling to its end."""

    def __init__(
        self,
        *,
        hello: Callable[[], frames.Frame],
        on_ack: Callable[[frames.HelloAck], None],
        on_frame: Callable[[frames.Frame], None],
    ) -> None:
        self._hello = hello
        self._on_ack = on_ack
        self._on_frame = on_frame
        #: Frames in the order of sending; ``None`` disconnects.
        self._outbox: asyncio.Queue[str | None] = asyncio.Queue()
        self._acked_at: float | None = None
        self._silence_s = frames.HELLO_TIMEOUT_S

    def send(self, text: str) -> None:
        """Sends a frame after all earlier ones."""
        self._outbox.put_nowait(text)

    def disconnect(self) -> None:
        """Closes the connection after all earlier frames, with the code for a worker that will not reconnect."""
        self._outbox.put_nowait(None)

    async def run(self, http: aiohttp.ClientSession, url: str, api_key: str | None) -> ConnectionEnd:
        """Dials and returns when the connection is closed. Raises nothing but ``CancelledError``."""
        code, reason, key_rejected = 0, "", False
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        try:
            socket = await asyncio.wait_for(self._dial(http, url, headers), frames.HELLO_TIMEOUT_S)
            try:
                reason = await self._exchange_frames(socket)
            except Exception:
                await socket.close(code=frames.CLOSE_INTERNAL_ERROR)
                raise
            finally:
                # Waits for the close frame of the proxy, so that the proxy has processed the disconnection on return.
                await socket.close(code=frames.CLOSE_DONE)
                code = socket.close_code or 0
        except asyncio.TimeoutError:
            reason = f"no response within {frames.HELLO_TIMEOUT_S:g} s"
        except aiohttp.WSServerHandshakeError as error:
            key_rejected = error.status in (401, 403)
            reason = f"HTTP {error.status} instead of a WebSocket"
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
        except Exception as error:  # a defect must end this connection, not the worker
            reason = f"the worker failed: {type(error).__name__}"
            # The message of the exception is omitted, because it may quote the prompt.
            where = "".join(traceback.format_tb(error.__traceback__))
            logger.error("the connection to %s ends: %s\n%s", url, reason, where)  # noqa: TRY400
        duration_s = 0.0 if self._acked_at is None else time.monotonic() - self._acked_at
        return ConnectionEnd(duration_s, code, reason, key_rejected)

    async def _dial(
        self, http: aiohttp.ClientSession, url: str, headers: Mapping[str, str]
    ) -> aiohttp.ClientWebSocketResponse:
        # Without autoping, receive() returns pings, which reset its timeout.
        return await http.ws_connect(
            url,
            headers=headers,
            autoping=False,
            compress=0,
            max_msg_size=frames.MAX_FRAME_BYTES,
            timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_TIMEOUT_S),
        )

    async def _exchange_frames(self, socket: aiohttp.ClientWebSocketResponse) -> str:
        """Sends and receives frames until either fails, and returns the reason. The socket may still be open."""
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
        return "the worker has disconnected"

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> str:
        while True:
            try:
                message = await socket.receive(timeout=self._silence_s)
            except asyncio.TimeoutError:
                # Not CLOSE_DONE: a proxy that is only slow keeps the requests, which continue after the reconnection.
                await socket.close(code=frames.CLOSE_INTERNAL_ERROR)
                return f"the proxy was silent for {self._silence_s:g} s"
            if message.type in _ENDED:
                # `extra` of a close message is its reason.
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
        elif self._acked_at is not None:
            self._on_frame(frame)
        else:
            ack = frames.parse_hello_ack(frame)
            self._acked_at = time.monotonic()
            self._silence_s = ack.heartbeat_s * frames.MISSED_HEARTBEATS
            self._on_ack(ack)
