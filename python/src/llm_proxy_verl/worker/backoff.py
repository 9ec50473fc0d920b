"""Maintains one connection: dials, and dials again after each disconnection, until stopped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

FIRST_LIMIT_S = 1.0
LAST_LIMIT_S = 60.0
#: A connection that lasted this long was stable: the next delay starts from the first limit.
STABLE_S = 10.0


def backoff_limit(failures: int) -> float:
    """Returns the longest delay, in seconds, after this number of consecutive failures."""
    return min(LAST_LIMIT_S, FIRST_LIMIT_S * 2.0 ** min(failures, 30))


async def keep_connected(
    connect: Callable[[], Awaitable[float]],
    stopping: asyncio.Event,
    *,
    draw: Callable[[], float] = random.random,
) -> None:
    """Returns when ``stopping`` is set and the current connection is closed.

    Delays are exponential with full jitter, each drawn between 0 and the limit, so that the workers of a restarted
    proxy do not reconnect at the same time.

    :param connect: dials, and returns the duration of the connection in seconds after its end (0: there was none)
    """
    failures = 0
    while not stopping.is_set():
        if await connect() >= STABLE_S:
            failures = 0
        try:
            await asyncio.wait_for(stopping.wait(), draw() * backoff_limit(failures))
        except asyncio.TimeoutError:
            failures += 1
