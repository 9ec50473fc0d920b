"""Tells a webhook of each task, and waits until the session is ended by whoever runs the agent."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from ..config import RemoteAgentConfig
from .runner import AgentResult, AgentRunner, AgentTask

#: What is quoted of a refusal.
_QUOTED_LENGTH = 300


class WebhookRunner(AgentRunner):
    """The runner ``http``; the reward is the session's own."""

    def __init__(self, config: RemoteAgentConfig, http: aiohttp.ClientSession) -> None:
        self._url = config.webhook_url or ""
        self._limit_s = config.agent_timeout
        self._http = http

    async def run(self, task: AgentTask) -> AgentResult:
        """Runs one agent, from the POST until the session has ended."""
        try:
            ended = await asyncio.wait_for(self._run(task), self._limit_s)
        except asyncio.TimeoutError:
            return AgentResult("timeout", error="the session was not ended in time")
        if ended == "completed":
            return AgentResult("completed")
        return AgentResult("failed", error="the session was aborted")

    async def _run(self, task: AgentTask) -> str:
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._http.post(self._url, json=_body(task), timeout=timeout) as response:
            if response.status >= 300:
                text = (await response.text())[:_QUOTED_LENGTH]
                raise ValueError(f"the webhook answered with {response.status}: {text}")
        return await task.until_ended()


def _body(task: AgentTask) -> dict[str, Any]:
    """Under the names of the HTTP API."""
    return {
        "trial_id": task.trial_id,
        "session_id": task.session_id,
        "try": task.try_number,
        "openai_base_url": task.openai_base_url,
        "anthropic_base_url": task.anthropic_base_url,
        "api_key": task.api_key,
        "model_name": task.model_name,
        "task_path": None if task.task_path is None else str(task.task_path),
        "sampling_params": task.sampling_params,
        "task": task.sample,
    }
