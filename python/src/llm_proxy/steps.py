"""Steps: requests to a proxy, independent of the kind of I/O.

A method of the API is written once, as a generator that yields requests and receives their responses.
:class:`SyncRunner` performs its steps synchronously, :class:`AsyncRunner` asynchronously. Errors, including a
cancellation, are raised at the ``yield``.
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
    """An HTTP request."""

    method: str
    url: str
    headers: Mapping[str, str]
    timeout: httpx.Timeout
    params: Mapping[str, str | int | float | bool] | None = None
    json: Any = None
    #: Called with the status of the response before its body is read, which may take hours.
    on_status: Callable[[int], None] | None = None

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments of ``httpx.Client.stream``."""
        body = {} if self.json is None else {"json": self.json}
        return {"headers": self.headers, "timeout": self.timeout, "params": self.params, **body}


@dataclass(frozen=True)
class Pause:
    """A delay before the next step."""

    seconds: float


@dataclass(frozen=True)
class Response:
    """An HTTP response; the result of a pause is an empty one."""

    status: int = 0
    text: str = ""


Steps = Generator[Request | Pause, Response, T]


class SyncRunner:
    """A base class that performs steps synchronously, so that a method returns when it is done."""

    _http: httpx.Client

    def _run_steps(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    response = self._step(step)
                except BaseException as error:  # noqa: PERF203 - the generator handles the error
                    step = steps.throw(error)
                else:
                    step = steps.send(response)
        except StopIteration as end:
            result: T = end.value
            return result

    def _step(self, step: Request | Pause) -> Response:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return Response()
        with self._http.stream(step.method, step.url, **step.options()) as response:
            if step.on_status is not None:
                step.on_status(response.status_code)
            response.read()
        return Response(response.status_code, response.text)


class AsyncRunner:
    """A base class that performs steps in an event loop, so that a method must be awaited."""

    _http: httpx.AsyncClient

    async def _run_steps(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    response = await self._step(step)
                except BaseException as error:  # noqa: PERF203 - the generator handles the error
                    step = steps.throw(error)
                else:
                    step = steps.send(response)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _step(self, step: Request | Pause) -> Response:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return Response()
        async with self._http.stream(step.method, step.url, **step.options()) as response:
            if step.on_status is not None:
                step.on_status(response.status_code)
            await response.aread()
        return Response(response.status_code, response.text)


class api_method(Generic[P, T]):  # noqa: N801 - a decorator, as property is one
    """Decorates a generator of steps as a method, which must be awaited in an :class:`AsyncRunner`."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self._steps = steps

    @overload
    def __get__(self, instance: None, kind: type) -> Callable[Concatenate[Any, P], Steps[T]]: ...
    @overload
    def __get__(self, instance: SyncRunner, kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: AsyncRunner, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: SyncRunner | AsyncRunner | None, kind: type) -> Callable[..., Any]:
        if instance is None:
            return self._steps
        steps = functools.partial(self._steps, instance)

        @functools.wraps(self._steps.__get__(instance))
        def method(*args: P.args, **kwargs: P.kwargs) -> T | Coroutine[Any, Any, T]:
            return instance._run_steps(steps(*args, **kwargs))

        return method
