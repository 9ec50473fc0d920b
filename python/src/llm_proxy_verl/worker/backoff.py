"""Reconnects with exponential backoff and full jitter."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

FIRST_LIMIT_S = 1.0
LAST_LIMIT_S = 60.0
#: A connection that lasted this long resets the backoff.
STABLE_S = 10.0


def get_backoff_limit(failures: int) -> float:
    """Returns the maximum delay in seconds after ``failures`` consecutive failures."""
    return min(LAST_LIMIT_S, FIRST_LIMIT_S * 2.0 ** min(failures, 30))


async def keep_connected(
    connect: Callable[[], Awaitable[float]],
    stopping: asyncio.Event,
    *,
    draw: Callable[[], float] = random.random,
) -> None:
    """Connects again after each disconnection, until ``stopping`` is set and the current connection is closed.

    Each delay is drawn between 0 and the limit, so that the workers of a restarted proxy do not reconnect at the same
    time.

    :param connect: dials, waits for the end of the connection and returns its duration in seconds (0: it failed)
    """
    failures = 0
    while not stopping.is_set():
        if await connect() >= STABLE_S:
            failures = 0
        try:
            await asyncio.wait_for(stopping.wait(), draw() * get_backoff_limit(failures))
        except asyncio.TimeoutError:
            failures += 1
