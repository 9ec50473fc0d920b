"""The books of a batch, and who tells of them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable

_MINUTE_S = 60.0


class RunCounts:
    """How many sessions were started and how they ended.

    :param clock: seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = self._throttled = self._done = self._failed = 0
        self._waiting = self._running = 0
        #: When the sessions of the last minute ended.
        self._last_minute: deque[float] = deque()

    @property
    def is_idle(self) -> bool:
        """Nothing runs, and nothing waits."""
        return not self._running and not self._waiting

    def waits(self) -> None:
        """A session is to be started when there is a place."""
        self._waiting += 1

    def gives_up(self) -> None:
        """It is not."""
        self._waiting -= 1

    def starts(self) -> None:
        """It has its place."""
        self._waiting -= 1
        self._running += 1
        self._started += 1

    def throttled(self) -> None:
        """AgentCore did not take a call."""
        self._throttled += 1

    def ends(self, is_done: bool) -> None:
        """:param is_done: the agent came to its own end"""
        self._running -= 1
        self._done += is_done
        self._failed += not is_done
        self._last_minute.append(self._clock())

    def describe(self) -> str:
        """One line."""
        since = self._clock() - _MINUTE_S
        while self._last_minute and self._last_minute[0] <= since:
            self._last_minute.popleft()
        sessions = (
            f"{self._started} started, {self._running} running, {self._waiting} waiting, {self._done} done"
        )
        per_minute = f"{len(self._last_minute)} in the last minute"
        return (
            f"AgentCore: {sessions}, {self._failed} failed, {self._throttled} calls throttled, {per_minute}"
        )


class Progress:
    """Writes the line now and then while there is something to tell: to stderr, which Ray shows the trainer's user.

    :param every_s: 0 for never
    """

    def __init__(self, counts: RunCounts, every_s: float) -> None:
        self._counts = counts
        self._every_s = every_s
        self._telling: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Something runs. It is told of until nothing does."""
        if self._every_s and self._telling is None:
            self._telling = asyncio.create_task(self._tell())

    async def end(self) -> None:
        """Nothing will run: the last line, unless it was told."""
        if self._telling is None:
            return
        telling, self._telling = self._telling, None
        telling.cancel()
        await asyncio.wait([telling])
        self._write()

    async def _tell(self) -> None:
        is_idle = False
        while not is_idle:
            await asyncio.sleep(self._every_s)
            is_idle = self._counts.is_idle
            self._write()
        self._telling = None

    def _write(self) -> None:
        sys.stderr.write(f"{self._counts.describe()}\n")
        sys.stderr.flush()
