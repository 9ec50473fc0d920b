"""Requests to a proxy as steps, without I/O.

A method is a generator that yields requests and receives their responses, so that it is implemented once:
:class:`Threads` performs them synchronously, a :class:`Loop` asynchronously. Errors are raised at the ``yield``,
including a cancellation.
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
        """The arguments of httpx besides method and URL."""
        body = {} if self.json is None else {"json": self.json}
        return {"headers": self.headers, "timeout": self.timeout, "params": self.params, **body}


@dataclass(frozen=True)
class Pause:
    """A pause."""

    seconds: float


@dataclass(frozen=True)
class Answer:
    """A response; empty for a pause."""

    status: int = 0
    text: str = ""


Steps = Generator[Request | Pause, Answer, T]


class Threads:
    """Performs steps synchronously: a method returns when it is done."""

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
    """Performs steps in an event loop: a method is awaited."""

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
    """Creates a method from its steps: one that returns in :class:`Threads`, one that is awaited in a :class:`Loop`."""

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
