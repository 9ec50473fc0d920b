"""One rollout: an agent is run, again if it fails, and what its session recorded becomes rows.

Each try has a session of its own. That of a failed try is aborted before the next begins, which cancels its calls in
flight and refuses those that come later, from whatever machine: nothing of it is in the session that counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from . import rows
from .config import RemoteAgentConfig
from .delays import retry_delay
from .errors import LlmProxyError, ProxyApiError
from .proxy_api import ProxyApi
from .rows import RolloutResult, SessionFacts
from .runners import AgentResult, AgentRunner, AgentTask
from .session_urls import agent_facing_url, url_segment
from .trial import instance_id_of, new_trial_id, session_id_of_try, task_path_of
from .values import plain

logger = logging.getLogger(__name__)

#: What somebody else did to a session that could not be completed.
_ENDED_BY_OTHERS = {"not_found": "removed"}

#: How long a session is tried to be ended when the rollout is called off.
_FAREWELL_S = 5.0


@dataclasses.dataclass(frozen=True)
class RowLimits:
    """How the proxy is to cut rows, and which of them are asked for."""

    prompt_length: int
    response_length: int
    #: ``all`` or ``longest``.
    select: str
    #: Any id of the vocabulary, for rows that train nothing.
    filler_id: int
    #: What sessions are recorded with beyond ids and log-probabilities, and their rows show.
    record: tuple[str, ...] = ()


class Rollout:
    """One rollout, to be run once.

    :param proxies: the first that is there has the session
    :param sampling_params: overrule what the agent asks for
    :param sample: a row of the dataset; nothing in it is changed
    """

    def __init__(
        self,
        *,
        config: RemoteAgentConfig,
        proxies: Sequence[ProxyApi],
        runner: AgentRunner,
        limits: RowLimits,
        sampling_params: Mapping[str, Any],
        sample: Mapping[str, Any],
    ) -> None:
        self._config = config
        self._proxies = proxies
        self._proxy = proxies[0]
        self._runner = runner
        self._limits = limits
        # verl's logprobs says whether the trainer wants them recorded. They always are.
        self._sampling_params = {
            name: value for name, value in plain(sampling_params).items() if name != "logprobs"
        }
        self._sample: dict[str, Any] = plain(sample)
        self._trial_id = new_trial_id(self._sample)
        self._started_at = time.monotonic()

    async def run(self) -> RolloutResult:
        """Runs the agent until a try counts.

        An agent that fails never makes this raise: a sample always has a result.

        :raises ProxyApiError: of the proxy
        """
        for number in range(1, self._config.max_retries + 2):
            session_id = session_id_of_try(self._trial_id, number)
            result = await self._try(session_id, number)
            if self._counts(result):
                return await self._collect(session_id, number, result)
            logger.warning("try %d of %s: agent %s: %s", number, session_id, result.status, result.error)
            if number <= self._config.max_retries:
                await asyncio.sleep(retry_delay(self._config.retry_base_delay, number))
        return self._inert(session_id, number, result, SessionFacts(), failed=True)

    def _counts(self, result: AgentResult) -> bool:
        return result.status == "completed" or (
            result.status == "timeout" and self._config.on_time_limit == "keep"
        )

    async def _try(self, session_id: str, number: int) -> AgentResult:
        """Runs the agent once; its session has ended when this returns or raises."""
        api_key = await self._create_session(session_id, number)
        try:
            result = await self._run_agent(self._task(session_id, number, api_key))
            if self._counts(result):
                return await self._complete(session_id, result)
            await self._proxy.abort(session_id)
        except BaseException:
            # The error is worth more than a second one about the session, which stays active then.
            with contextlib.suppress(LlmProxyError, asyncio.TimeoutError):
                await asyncio.wait_for(self._proxy.abort(session_id), _FAREWELL_S)
            raise
        return result

    async def _create_session(self, session_id: str, number: int) -> str:
        metadata = {"trial_id": self._trial_id, "try": number, "instance_id": instance_id_of(self._sample)}
        for proxy in self._proxies:
            self._proxy = proxy
            try:
                return await proxy.create_session(
                    session_id,
                    metadata={name: value for name, value in metadata.items() if value is not None},
                    sampling_params=self._sampling_params,
                    trust_agent=self._config.trust_agent,
                    record=self._limits.record,
                )
            except ProxyApiError as error:
                if error.code != "unreachable" or proxy is self._proxies[-1]:
                    raise
                logger.warning("%s; trying the next one", error)
        raise AssertionError("a rollout has a proxy")

    def _task(self, session_id: str, number: int, api_key: str) -> AgentTask:
        """Everything in it that could be changed is a copy: no try sees what the agent of another did."""
        sample = plain(self._sample)
        base_url = f"{agent_facing_url(self._proxy.url, self._config.agent_host)}/{url_segment(session_id)}"
        return AgentTask(
            trial_id=self._trial_id,
            session_id=session_id,
            try_number=number,
            sample=sample,
            task_path=task_path_of(sample, self._config.dataset_dirs, self._config.task_path_template),
            sampling_params=dict(self._sampling_params),
            openai_base_url=f"{base_url}/v1",
            anthropic_base_url=base_url,
            api_key=api_key,
            model_name=self._config.model_name,
            until_ended=lambda: self._proxy.until_ended(session_id),
        )

    async def _run_agent(self, task: AgentTask) -> AgentResult:
        try:
            result = await self._runner.run(task)
        except Exception as error:  # a runner's, of whatever kind
            return AgentResult("error", error=str(error) or type(error).__name__)
        wrong = [name for name, part in result.rewards.items() if not math.isfinite(part)]
        if wrong:
            return AgentResult("error", error=f"its reward {wrong[0]!r} is no number")
        return result

    async def _complete(self, session_id: str, result: AgentResult) -> AgentResult:
        if result.rewards:
            await self._proxy.set_reward(session_id, math.fsum(result.rewards.values()), result.rewards)
        status = await self._proxy.complete(session_id)
        if status == "completed":
            return result
        return AgentResult("failed", error=f"its session was {_ENDED_BY_OTHERS.get(status, status)}")

    async def _collect(self, session_id: str, number: int, result: AgentResult) -> RolloutResult:
        session = await self._trajectories(session_id, "all")
        exact = [row for row in session["trajectories"] if row["exact"]]
        about = SessionFacts(
            reward=session["reward"],
            reward_components=session["reward_components"],
            num_rows=len(exact),
            inexact_turns=sum(len(row["turns"]) for row in session["trajectories"] if not row["exact"]),
        )
        taken, images = exact, session.get("images")
        if len(exact) > 1 and self._limits.select == "longest":
            # Asked for by itself, so that what it shares with other rows trains here.
            taken = (await self._trajectories(session_id, "longest"))["trajectories"]
        found = rows.rows_of(taken, images)
        if not found:
            why = AgentResult(result.status, error=result.error or rows.why_inert(session))
            return self._inert(session_id, number, why, about)
        in_rows = {turn["turn_id"] for row in taken for turn in row["turns"]}
        turns = {turn["turn_id"] for row in exact for turn in row["turns"]}
        return RolloutResult(
            rows=found,
            trial_id=self._trial_id,
            session_id=session_id,
            agent_status=result.status,
            error=result.error,
            tries=number,
            agent_seconds=time.monotonic() - self._started_at,
            session=dataclasses.replace(about, left_out_turns=len(turns - in_rows)),
        )

    async def _trajectories(self, session_id: str, select: str) -> dict[str, Any]:
        limits = self._limits
        details = {"details": ",".join(limits.record)} if limits.record else {}
        return await self._proxy.trajectories(
            session_id,
            **details,
            prompt_length=limits.prompt_length,
            response_length=limits.response_length,
            select=select,
            finished_only="true",
            images="true",
        )

    def _inert(
        self,
        session_id: str,
        number: int,
        result: AgentResult,
        session: SessionFacts,
        *,
        failed: bool = False,
    ) -> RolloutResult:
        return RolloutResult(
            rows=[rows.inert_row(self._limits.filler_id)],
            trial_id=self._trial_id,
            session_id=session_id,
            agent_status=result.status,
            error=result.error,
            tries=number,
            agent_seconds=time.monotonic() - self._started_at,
            session=session,
            failed=failed,
            inert=True,
        )
