"""Runs calls of boto3, which block, beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


def in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """Begins the call at once; it goes on to its end, whatever becomes of those who wait (``asyncio.shield`` it).

    Each has a thread of its own, which no end of the process waits for: an agent may hold a call for 15 minutes.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            result = call()
        except Exception as error:
            _tell(loop, done, partial(done.set_exception, error))
        else:
            _tell(loop, done, partial(done.set_result, result))

    threading.Thread(target=work, daemon=True, name="llm-proxy-agentcore").start()
    return done


def _tell(loop: asyncio.AbstractEventLoop, done: asyncio.Future[T], tell: Callable[[], None]) -> None:
    # A loop that is closed has nobody who waits.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: None if done.done() else tell())
