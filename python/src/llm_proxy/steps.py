"""What is asked of a proxy, step by step, without the asking.

A call is a generator that yields requests and gets their answers, so that it is written once: :class:`Threads` ask and
wait, a :class:`Loop` asks and is awaited. What goes wrong on the way is raised at the ``yield``, a cancellation too.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import httpx

P = ParamSpec("P")
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


class Threads:
    """Asks with threads: a call returns when it is done."""

    _http: httpx.Client

    def _do(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._step(step)
                except BaseException as error:  # noqa: PERF203 - the steps say what becomes of it
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def _step(self, step: Request | Pause) -> Answer:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return Answer()
        response = self._http.request(step.method, step.url, **step.options())
        return Answer(response.status_code, response.text)


class Loop:
    """Asks in an event loop: a call is awaited."""

    _http: httpx.AsyncClient

    async def _do(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._step(step)
                except BaseException as error:  # noqa: PERF203 - the steps say what becomes of it
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _step(self, step: Request | Pause) -> Answer:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return Answer()
        response = await self._http.request(step.method, step.url, **step.options())
        return Answer(response.status_code, response.text)


class call(Generic[P, T]):  # noqa: N801 - a decorator, as property is one
    """Makes a method of its steps: of :class:`Threads` one that returns, of a :class:`Loop` one that is awaited."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self._steps = steps

    @overload
    def __get__(self, asker: None, kind: type) -> Callable[Concatenate[Any, P], Steps[T]]: ...
    @overload
    def __get__(self, asker: Threads, kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, asker: Loop, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, asker: Threads | Loop | None, kind: type) -> Callable[..., Any]:
        if asker is None:
            return self._steps
        steps = functools.partial(self._steps, asker)

        @functools.wraps(self._steps.__get__(asker))
        def method(*args: P.args, **kwargs: P.kwargs) -> T | Coroutine[Any, Any, T]:
            return asker._do(steps(*args, **kwargs))

        return method
