"""The calls of one AgentCore endpoint, spread evenly: starts, stops and polls share one quota of calls a second.

Kinds of calls take turns, and within a kind the first to ask goes first, so that neither a thousand polls keep a
session from being stopped, nor a thousand starts. No second, wherever it begins, has more calls than the rate.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Callable
from typing import Literal, Protocol

CallKind = Literal["start", "stop", "poll"]

#: A timer that fires late is made up for by so much, so that a busy machine still comes near the rate.
_CATCH_UP_S = 0.1
_WINDOW_S = 1.0
#: Calls that were on their way together are throttled together, which is one event.
_ONE_EVENT_S = 1.0
#: Parts of the rate a second: from half of it to all of it in 10 s.
_RECOVERY = 0.05
#: The least part of the rate that is left.
_SLOWEST = 1 / 32


class Clock(Protocol):
    """What it needs of an event loop."""

    def time(self) -> float:
        """Seconds."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> object:
        """After so many seconds."""


class RateLimiter:
    """Grants calls at a rate that halves when the service throttles, and recovers.

    :param per_second: calls a second, when nothing is throttled
    """

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._clock = clock
        self._full_rate = self._rate = per_second
        self._rate_at = clock.time()
        self._throttled_at = self._next_at = -math.inf
        #: When the last calls were granted, as many as a second may have.
        self._granted_at: list[float] = []
        # Dictionaries as sets that keep their order.
        self._waiting: dict[CallKind, dict[asyncio.Future[None], None]] = {
            "stop": {},
            "start": {},
            "poll": {},
        }
        #: Whose turn it is: the first one that has something to do.
        self._turns: list[CallKind] = ["stop", "start", "poll"]
        self._is_scheduled = False

    @property
    def rate(self) -> float:
        """Calls a second that are granted now."""
        recovered = (self._clock.time() - self._rate_at) * _RECOVERY * self._full_rate
        return min(self._full_rate, self._rate + recovered)

    def lower_to(self, per_second: float) -> None:
        """Never more than this from now on."""
        self._full_rate = min(self._full_rate, per_second)

    async def acquire(self, kind: CallKind) -> None:
        """Returns when the call may be made; one that is called off is not counted."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[kind][granted] = None
        self._schedule()
        try:
            await granted
        finally:
            self._waiting[kind].pop(granted, None)

    def throttled(self) -> None:
        """To be told when the service has throttled a call."""
        now = self._clock.time()
        if now - self._throttled_at < _ONE_EVENT_S:
            return
        self._rate = max(self._full_rate * _SLOWEST, self.rate / 2)
        self._rate_at = self._throttled_at = now

    def _schedule(self) -> None:
        if not self._is_scheduled and self._next_kind() is not None:
            self._is_scheduled = True
            self._clock.call_later(max(0.0, self._due_at - self._clock.time()), self._fire)

    def _fire(self) -> None:
        self._is_scheduled = False
        # A loop may run a timer a little early: then once more.
        if self._clock.time() >= self._due_at:
            self._grant()
        self._schedule()

    @property
    def _due_at(self) -> float:
        """When the next call may be made: in its turn, and a second after the call that leaves room for it."""
        count = math.ceil(self._full_rate)
        if len(self._granted_at) < count:
            return self._next_at
        return max(self._next_at, self._granted_at[-count] + _WINDOW_S)

    def _grant(self) -> None:
        kind = self._next_kind()
        if kind is None:
            return
        first = next(iter(self._waiting[kind]))
        del self._waiting[kind][first]
        if first.done():
            # Called off since the loop last ran: the next one has its place.
            self._grant()
            return
        self._turns = [*(other for other in self._turns if other != kind), kind]
        now = self._clock.time()
        self._next_at = max(self._next_at, now - _CATCH_UP_S) + 1 / self.rate
        self._granted_at = [*self._granted_at, now][-math.ceil(self._full_rate) :]
        first.set_result(None)

    def _next_kind(self) -> CallKind | None:
        return next((kind for kind in self._turns if self._waiting[kind]), None)


#: By event loop and ARN: the quota is the service's, however many runners share it.
_limiters: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, RateLimiter]]
_limiters = weakref.WeakKeyDictionary()


def limiter_of(arn: str, per_second: float) -> RateLimiter:
    """A runtime's limiter, the same for all of this event loop; the lowest rate that was asked for counts."""
    loop = asyncio.get_running_loop()
    known = _limiters.setdefault(loop, {})
    if arn not in known:
        known[arn] = RateLimiter(per_second, loop)
    known[arn].lower_to(per_second)
    return known[arn]
