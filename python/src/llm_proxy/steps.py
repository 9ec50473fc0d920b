"""What is asked of a proxy, step by step, without the asking.

A call is a generator that yields requests and gets their answers, so that it is written once: :func:`run` asks with
threads, :func:`run_async` in an event loop. What goes wrong on the way is raised at the ``yield``, a cancellation too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """One HTTP request."""

    method: str
    url: str
    headers: Mapping[str, str]
    timeout: httpx.Timeout
    params: Mapping[str, str | int | float | bool] | None = None
    json: Any = None

    def options(self) -> dict[str, Any]:
        """As httpx takes it beside method and URL."""
        body = {} if self.json is None else {"json": self.json}
        return {"headers": self.headers, "timeout": self.timeout, "params": self.params, **body}


@dataclass(frozen=True)
class Pause:
    """Nothing is done for so long."""

    seconds: float


@dataclass(frozen=True)
class Answer:
    """What came back; of a pause, nothing."""

    status: int = 0
    text: str = ""


Steps = Generator[Request | Pause, Answer, T]


def run(http: httpx.Client, steps: Steps[T]) -> T:
    """Does what ``steps`` asks for, and returns what it returns."""
    try:
        step = next(steps)
        while True:
            try:
                answer = _do(http, step)
            except BaseException as error:  # noqa: PERF203 - the steps say what becomes of it
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _do(http: httpx.Client, step: Request | Pause) -> Answer:
    if isinstance(step, Pause):
        time.sleep(step.seconds)
        return Answer()
    response = http.request(step.method, step.url, **step.options())
    return Answer(response.status_code, response.text)


async def run_async(http: httpx.AsyncClient, steps: Steps[T]) -> T:
    """As :func:`run`, in an event loop."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await _do_async(http, step)
            except BaseException as error:  # noqa: PERF203 - the steps say what becomes of it
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


async def _do_async(http: httpx.AsyncClient, step: Request | Pause) -> Answer:
    if isinstance(step, Pause):
        await asyncio.sleep(step.seconds)
        return Answer()
    response = await http.request(step.method, step.url, **step.options())
    return Answer(response.status_code, response.text)
