"""A request that the worker serves: the unacknowledged frames of its response, and flow control."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from ..errors import CallError
from .frames import MAX_FRAME_BYTES


class ServedRequest:
    """A request with the numbered frames of its response, which are retained until they are acknowledged so that they
    can be sent again."""

    def __init__(self, request_id: str, window_bytes: int) -> None:
        self.request_id = request_id
        self.has_ended = False
        #: The monotonic time at which the request started, in seconds.
        self.started_at = time.monotonic()
        #: The task that serves the request.
        self.task: asyncio.Task[None] | None = None
        self._window_bytes = window_bytes
        self._kept: deque[tuple[int, str, int]] = deque()
        self._kept_bytes = 0
        self._last_seq = 0
        self._changed = asyncio.Event()

    def add(self, write: Callable[[int], str]) -> str:
        """Adds a frame.

        :param write: returns the text of the frame with a given number
        :returns: the text, which the caller sends
        :raises CallError: if the frame exceeds the limit, because the proxy would close the connection after each
            reconnect
        """
        text = write(self._last_seq + 1)
        size = len(text.encode())
        if size > MAX_FRAME_BYTES:
            raise CallError("engine_failed", "the completion exceeds the maximum frame size")
        self._last_seq += 1
        self._kept.append((self._last_seq, text, size))
        self._kept_bytes += size
        return text

    def end(self, write: Callable[[int], str]) -> str:
        """Adds the last frame."""
        text = self.add(write)
        self.has_ended = True
        return text

    def acknowledge(self, seq: int) -> None:
        """Drops the frames up to ``seq``. Old and repeated acknowledgements have no effect."""
        while self._kept and self._kept[0][0] <= seq:
            self._kept_bytes -= self._kept.popleft()[2]
        self._changed.set()

    def resize_window(self, window_bytes: int) -> None:
        """Sets the window, which may change when the proxy restarts."""
        self._window_bytes = window_bytes
        self._changed.set()

    async def wait_for_room(self) -> None:
        """Waits until the window has space. Frames are not split, so the last one may exceed the window."""
        while self._kept_bytes >= self._window_bytes:
            self._changed.clear()
            await self._changed.wait()

    def get_frames_after(self, received: int) -> list[str]:
        """Returns the frames after the number ``received``."""
        return [text for seq, text, _ in self._kept if seq > received]

    @property
    def is_delivered(self) -> bool:
        """Whether the proxy has acknowledged all frames."""
        return self.has_ended and not self._kept

    def stop(self) -> None:
        """Cancels the request."""
        if self.task is not None:
            self.task.cancel()
