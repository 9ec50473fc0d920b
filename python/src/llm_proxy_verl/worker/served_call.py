"""A request at the worker: the unacknowledged frames of its response, and the wait for window space."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from ..errors import CallError
from .frames import MAX_FRAME_BYTES


class ServedCall:
    """Numbers the frames of one response and keeps each until the proxy has it, so that it can be sent again."""

    def __init__(self, request_id: str, window_bytes: int) -> None:
        self.request_id = request_id
        self.has_ended = False
        #: Time of the monotonic clock.
        self.begun_at = time.monotonic()
        #: Serves the request; cancelling it cancels the request.
        self.task: asyncio.Task[None] | None = None
        self._window_bytes = window_bytes
        self._kept: deque[tuple[int, str, int]] = deque()
        self._kept_bytes = 0
        self._last_seq = 0
        self._moved = asyncio.Event()

    def add(self, write: Callable[[int], str]) -> str:
        """Numbers a frame.

        :param write: returns the text of the frame with this number
        :returns: the text, to be sent now
        :raises CallError: for one that exceeds the frame limit: the proxy would close the connection, again after each
            reconnect
        """
        text = write(self._last_seq + 1)
        size = len(text.encode())
        if size > MAX_FRAME_BYTES:
            raise CallError("engine_failed", "one batch of the engine exceeds the frame limit")
        self._last_seq += 1
        self._kept.append((self._last_seq, text, size))
        self._kept_bytes += size
        return text

    def end(self, write: Callable[[int], str]) -> str:
        """Numbers the last frame."""
        text = self.add(write)
        self.has_ended = True
        return text

    def acknowledge(self, seq: int) -> None:
        """Drops the frames up to ``seq``, which the proxy has delivered.

        Old and repeated acknowledgements are harmless.
        """
        while self._kept and self._kept[0][0] <= seq:
            self._kept_bytes -= self._kept.popleft()[2]
        self._moved.set()

    def resize_window(self, window_bytes: int) -> None:
        """Sets the window, which may differ after a restart of the proxy."""
        self._window_bytes = window_bytes
        self._moved.set()

    async def room(self) -> None:
        """Waits until another frame may be sent. A frame is never split, so the last one may exceed the window."""
        while self._kept_bytes >= self._window_bytes:
            self._moved.clear()
            await self._moved.wait()

    def after(self, received: int) -> list[str]:
        """Returns the frames after ``received``, the last one that the proxy has received."""
        return [text for seq, text, _ in self._kept if seq > received]

    @property
    def is_delivered(self) -> bool:
        """Whether the proxy has acknowledged all frames."""
        return self.has_ended and not self._kept

    def stop(self) -> None:
        """Cancels the request, because its response is no longer needed."""
        if self.task is not None:
            self.task.cancel()
