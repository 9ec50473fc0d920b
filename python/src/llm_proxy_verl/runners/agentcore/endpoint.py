"""The two calls of AgentCore's data plane, each within the rate of its endpoint.

They are tried again where that can do no harm.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

from ...delays import retry_delay
from ...errors import ConfigError
from .aws import aws_client
from .rate_limiter import CallKind, limiter_of
from .refusals import RefusalError, RefusalKind, refusal_of
from .session import AgentCoreSession
from .threads import in_thread

T = TypeVar("T")

#: A call that was not taken is made again so often; the limiter slows down meanwhile.
_TRIES = 8
_MAX_PAYLOAD_BYTES = 100_000_000
_NOT_TAKEN: tuple[RefusalKind, ...] = ("throttled", "quota", "conflict")
_ARN = re.compile(r"arn:[\w-]+:bedrock-agentcore:([\w-]+):\d*:runtime/.+")
#: AgentCore ends a call after 15 minutes.
_READ_TIMEOUT_S = 16 * 60
_CONNECT_TIMEOUT_S = 10


class AgentCoreEndpoint:
    """One endpoint of one runtime.

    :param arn: ``arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/name-id``
    :param qualifier: name of the endpoint
    :param tps: calls a second
    :param max_calls: that may be on their way: an agent that does not work in the background holds one to its end
    :param retry_base_s: before a call that was not taken is made again; it doubles each time
    :param on_throttled: is told of each call that was throttled
    :raises ConfigError: for what is no ARN of a runtime
    """

    def __init__(
        self,
        arn: str,
        qualifier: str,
        *,
        tps: float,
        max_calls: int,
        retry_base_s: float,
        on_throttled: Callable[[], None],
    ) -> None:
        found = _ARN.fullmatch(arn)
        if found is None:
            example = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/my_agent-abc"
            raise ConfigError(f"{arn!r} is no ARN of an AgentCore runtime, as {example} is")
        self.region = found[1]
        self._names = {"agentRuntimeArn": arn, "qualifier": qualifier}
        self._tps = tps
        self._max_calls = max_calls
        self._retry_base_s = retry_base_s
        self._on_throttled = on_throttled
        self._client: Any = None
        #: By session: starts that may not have come to their end.
        self._starting: dict[str, asyncio.Future[Any]] = {}

    async def prepare(self) -> None:
        """:raises ConfigError: when boto3 or credentials are not there"""
        self._limiter = limiter_of(self._names["agentRuntimeArn"], self._tps)
        self._client = await aws_client(
            "bedrock-agentcore",
            self.region,
            # Each try goes through the limiter, which boto3's own would not.
            retries={"total_max_attempts": 1},
            max_pool_connections=self._max_calls,
            read_timeout=_READ_TIMEOUT_S,
            connect_timeout=_CONNECT_TIMEOUT_S,
            tcp_keepalive=True,
        )

    async def start(self, session: AgentCoreSession, payload: Mapping[str, Any]) -> Any:
        """Starts the session and its agent.

        :returns: the answer of the agent's program, parsed; ``None`` when it is not JSON
        :raises RefusalError: also when it was tried again in vain; ``session.is_begun`` says whether something may run
        """
        body = _encode(payload)

        async def send() -> Any:
            await self._limiter.acquire("start")
            session.is_begun = True
            calling = in_thread(lambda: self._invoke(session.id, body))
            self._starting[session.id] = calling
            calling.add_done_callback(lambda _: self._starting.pop(session.id, None))
            return await self._answer(calling)

        try:
            # What got lost on its way is not sent again: the agent may be at work, and a second one would join its
            # record.
            return await self._tries(_NOT_TAKEN, send)
        except RefusalError as refusal:
            session.is_begun = not refusal.is_before_start
            raise

    async def ask(self, session_id: str, payload: Mapping[str, Any]) -> Any:
        """As ``start``, for a session that runs. A question may be asked again however it was lost."""
        body = _encode(payload)
        return await self._tries(
            (*_NOT_TAKEN, "lost"), lambda: self._call("poll", lambda: self._invoke(session_id, body))
        )

    async def stop(self, session_id: str) -> None:
        """The session is stopped, or was not there. One try.

        :raises RefusalError: of another kind
        """
        starting = self._starting.get(session_id)
        await self._stop(session_id)
        if starting is not None:
            # It was called off on its way, from where it may have started the session behind the stop.
            await asyncio.wait([starting])
            await self._stop(session_id)

    async def _stop(self, session_id: str) -> None:
        try:
            await self._call(
                "stop",
                lambda: self._client.stop_runtime_session(**self._names, runtimeSessionId=session_id),
            )
        except RefusalError as refusal:
            if refusal.kind != "gone":
                raise

    async def _call(self, kind: CallKind, call: Callable[[], T]) -> T:
        await self._limiter.acquire(kind)
        return await self._answer(in_thread(call))

    async def _answer(self, calling: asyncio.Future[T]) -> T:
        try:
            return await asyncio.shield(calling)
        except Exception as error:
            refusal = refusal_of(error)
            if refusal.kind == "throttled":
                self._limiter.throttled()
                self._on_throttled()
            raise refusal from error

    async def _tries(self, again: Collection[RefusalKind], call: Callable[[], Awaitable[T]]) -> T:
        for failures in range(1, _TRIES):
            try:
                return await call()
            except RefusalError as refusal:
                if refusal.kind not in again:
                    raise
            await asyncio.sleep(retry_delay(self._retry_base_s, failures))
        return await call()

    def _invoke(self, session_id: str, body: bytes) -> Any:
        """In a thread."""
        answer = self._client.invoke_agent_runtime(
            **self._names,
            runtimeSessionId=session_id,
            contentType="application/json",
            accept="application/json",
            payload=body,
        )
        text = answer["response"].read()
        if answer.get("statusCode", 200) >= 300:
            raise RefusalError("agent", f"status {answer['statusCode']}: {text.decode(errors='replace')}")
        try:
            return json.loads(text)
        except ValueError:
            return None


def _encode(payload: Mapping[str, Any]) -> bytes:
    body = json.dumps(payload).encode()
    if len(body) > _MAX_PAYLOAD_BYTES:
        raise RefusalError(
            "refused", f"the row has {len(body)} bytes, of which AgentCore takes {_MAX_PAYLOAD_BYTES}"
        )
    return body
