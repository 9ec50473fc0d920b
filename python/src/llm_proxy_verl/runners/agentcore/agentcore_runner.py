"""The runner ``agentcore``: each try in a session of its own; the agent tells its reward."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from pathlib import Path

from ...config import RemoteAgentConfig
from ...errors import ConfigError
from ..runner import AgentResult, AgentRunner, AgentTask
from .endpoint import AgentCoreEndpoint
from .envelope_results import EnvelopeResults
from .ledger import Ledger
from .refusals import RefusalError
from .result_bucket import ResultBucket
from .result_queue import ResultQueue
from .run_counts import Progress, RunCounts
from .session import AgentCoreSession, ResultSource
from .session_stops import SessionStops
from .stored_results import StoredResults


class AgentCoreRunner(AgentRunner):
    """One for all rollouts of a process, which share its rate and its bound of sessions.

    :raises ConfigError: that names the option
    """

    def __init__(self, config: RemoteAgentConfig) -> None:
        retry_base_s = config.retry_base_delay
        self._counts = RunCounts()
        self._progress = Progress(self._counts, config.agentcore_progress)
        self._endpoint = AgentCoreEndpoint(
            config.agentcore_arn or "",
            config.agentcore_qualifier,
            tps=config.agentcore_tps,
            # Each session may hold one, and be asked or stopped by another.
            max_calls=2 * config.agentcore_sessions,
            retry_base_s=retry_base_s,
            on_throttled=self._counts.throttled,
        )
        self._results = _results_of(config, self._endpoint)
        self._stops = SessionStops(self._endpoint, retry_base_s)
        self._places = asyncio.Semaphore(config.agentcore_sessions)
        self._limit_s = config.agent_timeout
        self._config = config
        self._preparing = asyncio.Lock()
        self._ledger: Ledger | None = None

    async def prepare(self) -> None:
        """Looks for what is needed, once, and stops what a crash left running.

        :raises ConfigError: that says what is not there
        """
        await self._opened_ledger()

    async def run(self, task: AgentTask) -> AgentResult:
        """Runs one agent. The time limit counts from when its session has a place."""
        ledger = await self._opened_ledger()
        await self._enter()
        session = AgentCoreSession.of(task)
        result = None
        try:
            await ledger.opened(session.id)
            result = await self._result(session)
        finally:
            self._counts.ends(result is not None and result.status == "completed")
            # Its place is free when it is stopped: until then the account's quota counts it.
            self._stops.end(session.id, ledger, is_begun=session.is_begun, then=self._places.release)
        return result

    async def close(self) -> None:
        """Waits up to a minute for the last stops."""
        await self._stops.close()
        await self._progress.end()
        await self._results.close()
        if self._ledger is not None:
            await self._ledger.close()

    async def _enter(self) -> None:
        self._counts.waits()
        self._progress.begin()
        try:
            await self._places.acquire()
        except BaseException:
            self._counts.gives_up()
            raise
        self._counts.starts()

    async def _result(self, session: AgentCoreSession) -> AgentResult:
        try:
            return await asyncio.wait_for(self._results.run(session), self._limit_s)
        except asyncio.TimeoutError:
            return await self._timed_out(session)
        except RefusalError as refusal:
            return refusal.result

    async def _timed_out(self, session: AgentCoreSession) -> AgentResult:
        late = None
        # Whatever it is: nothing was heard of the agent.
        with contextlib.suppress(Exception):
            late = await self._results.last_look(session)
        error = f"no result within {self._limit_s:g} s: the agent is at work, or AgentCore ended its session"
        return late or AgentResult("timeout", error=error)

    async def _opened_ledger(self) -> Ledger:
        config = self._config
        async with self._preparing:
            if self._ledger is None:
                await self._endpoint.prepare()
                await self._results.prepare()
                self._ledger = await Ledger.open(
                    Path(config.agentcore_ledger), config.agentcore_arn or "", config.agentcore_qualifier
                )
                for left in self._ledger.open_sessions:
                    self._stops.end(left, self._ledger)
        return self._ledger


def _results_of(config: RemoteAgentConfig, endpoint: AgentCoreEndpoint) -> ResultSource:
    bucket_name, queue_url = config.agentcore_bucket, config.agentcore_queue
    way = config.agentcore_results or ("sqs" if queue_url else "s3" if bucket_name else "envelope")
    if way == "envelope":
        return EnvelopeResults(endpoint)
    experiment = config.agentcore_experiment or f"llm-proxy-{secrets.token_hex(6)}"
    if bucket_name is None:
        raise _lacks(way, "agentcore_bucket")
    bucket = ResultBucket(bucket_name, endpoint.region)
    if way == "s3":
        return StoredResults(endpoint, bucket, experiment)
    if queue_url is None:
        raise _lacks(way, "agentcore_queue")
    return StoredResults(endpoint, bucket, experiment, ResultQueue(queue_url, endpoint.region, experiment))


def _lacks(way: str, option: str) -> ConfigError:
    variable = f"LLM_PROXY_{option.upper()}"
    return ConfigError(
        f"results by {way} need remote_agent.{option} or {variable}, or another agentcore_results"
    )
