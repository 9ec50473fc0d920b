"""Results that the agent's program leaves in S3 under ``{experiment}/{input}/{session}.json``.

As ``AgentCoreRLApp`` of agentcore-rl-toolkit does. They are looked for now and then, or when S3 has told a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ..runner import AgentResult
from .endpoint import AgentCoreEndpoint
from .result import parse_result, quoted
from .result_bucket import ResultBucket
from .result_queue import ResultQueue
from .session import AgentCoreSession

_FIRST_LOOK_S = 0.5
_LONGEST_LOOK_S = 10.0
_LOOK_GROWTH = 1.5
#: Where a queue tells: a message that got lost costs so much time, and no result.
_LOOK_BESIDE_QUEUE_S = 60.0
_LAST_LOOK_S = 10.0


class StoredResults:
    """The ways ``s3`` and, with a queue, ``sqs``.

    :param experiment: first part of the keys; of this run alone
    """

    def __init__(
        self,
        endpoint: AgentCoreEndpoint,
        bucket: ResultBucket,
        experiment: str,
        queue: ResultQueue | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._bucket = bucket
        self._experiment = experiment
        self._queue = queue

    async def prepare(self) -> None:
        """:raises ConfigError: when the bucket or the queue cannot be read"""
        await self._bucket.prepare(self._experiment)
        if self._queue is not None:
            await self._queue.prepare()

    async def run(self, session: AgentCoreSession) -> AgentResult:
        """Starts the agent and looks for its result, which may be there before the call that starts it returns."""
        place = _Place(self._key_of(session))
        if self._queue is not None:
            self._queue.expect(session.id, place.told_of)
        looking = asyncio.create_task(self._look_until_there(session, place))
        starting = asyncio.create_task(self._start(session, place))
        try:
            await asyncio.wait((looking, starting), return_when=asyncio.FIRST_COMPLETED)
            if not looking.done() and (answered := starting.result()) is not None:
                return answered
            return await looking
        finally:
            if self._queue is not None:
                self._queue.forget(session.id)
            looking.cancel()
            starting.cancel()
            await asyncio.gather(looking, starting, return_exceptions=True)

    async def last_look(self, session: AgentCoreSession) -> AgentResult | None:
        """Looks once more."""
        return await asyncio.wait_for(self._look(session, self._key_of(session)), _LAST_LOOK_S)

    async def close(self) -> None:
        """Reads the queue no more."""
        if self._queue is not None:
            await self._queue.close()

    def _key_of(self, session: AgentCoreSession) -> str:
        return f"{self._experiment}/{session.input_id}/{session.id}.json"

    async def _start(self, session: AgentCoreSession, place: _Place) -> AgentResult | None:
        """``None`` if the agent works in the background."""
        answer = await self._endpoint.start(session, {**session.payload, **self._orders(session)})
        about = answer if isinstance(answer, Mapping) else {}
        if isinstance(about.get("result_key"), str):
            place.key = about["result_key"]
            return None
        if about.get("status") == "processing":
            return None
        # It is done: what is not in S3 now never will be.
        error = (
            f"its program left nothing in S3 and answered {quoted(answer)}; the way envelope takes answers"
        )
        return await self._look(session, place.key) or AgentResult("error", error=error)

    def _orders(self, session: AgentCoreSession) -> dict[str, Any]:
        where = {"exp_id": self._experiment, "input_id": session.input_id, "s3_bucket": self._bucket.name}
        orders = {
            "_config": session.model,
            "_rollout": {**where, **session.model, "sampling_params": session.sampling_params},
        }
        if self._queue is not None:
            # As apps know it that were written for queues.
            orders["_training"] = {**where, "session_id": session.id, "sqs_url": self._queue.url}
        return orders

    async def _look_until_there(self, session: AgentCoreSession, place: _Place) -> AgentResult:
        wait_s = _FIRST_LOOK_S if self._queue is None else _LOOK_BESIDE_QUEUE_S
        while True:
            await place.wait_told(wait_s)
            result = await self._look(session, place.key)
            if result is not None:
                return result
            if self._queue is None:
                wait_s = min(_LONGEST_LOOK_S, wait_s * _LOOK_GROWTH)

    async def _look(self, session: AgentCoreSession, key: str) -> AgentResult | None:
        text = await self._bucket.get(key)
        return None if text is None else parse_result(text, session.input_id)


class _Place:
    """Where a result is looked for."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._told = asyncio.Event()

    def told_of(self, key: str) -> None:
        self.key = key
        self._told.set()

    async def wait_told(self, limit_s: float) -> None:
        """Until a message has told of it, or so long; once told, so long again before each look."""
        try:
            await asyncio.wait_for(self._told.wait(), limit_s)
        except asyncio.TimeoutError:
            return
        self._told.clear()
