"""Results by asking the session itself, without S3: the envelope of agentcore-rl-toolkit 0.2 (``AgentCoreRuntimeApp``).

An app that knows no envelope and answers when it is done works as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ..runner import AgentResult
from .endpoint import AgentCoreEndpoint
from .refusals import RefusalError
from .result import quoted, read_result
from .session import AgentCoreSession

_STATUSES = ("in_progress", "completed", "interrupted", "not_found")
_FIRST_POLL_S = 1.0
#: Each poll takes a call from the quota.
_LONGEST_POLL_S = 10.0
_POLL_GROWTH = 1.5


class EnvelopeResults:
    """The way ``envelope``."""

    def __init__(self, endpoint: AgentCoreEndpoint) -> None:
        self._endpoint = endpoint

    async def prepare(self) -> None:
        """There is nothing to read from but the sessions."""

    async def run(self, session: AgentCoreSession) -> AgentResult:
        """Starts the agent and asks until it is done."""
        orders = _envelope(session.id, operation="start", background=True)
        state = await self._endpoint.start(session, {**session.payload, "_config": session.model, **orders})
        if not _is_state(state, session.id):
            return _answer_of(state, session.input_id)
        wait_s = _FIRST_POLL_S
        while (result := _result_of(state, session.input_id)) is None:
            await asyncio.sleep(wait_s)
            wait_s = min(_LONGEST_POLL_S, wait_s * _POLL_GROWTH)
            state = await self._ask(session.id)
        return result

    async def last_look(self, session: AgentCoreSession) -> AgentResult | None:
        """Asks once more."""
        state = await asyncio.wait_for(self._ask(session.id), _LONGEST_POLL_S)
        return _result_of(state, session.input_id)

    async def close(self) -> None:
        """There is nothing in the background."""

    async def _ask(self, session_id: str) -> Mapping[str, Any]:
        state = await self._endpoint.ask(session_id, _envelope(session_id, operation="get"))
        if not _is_state(state, session_id):
            raise RefusalError("agent", f"it answered a poll with {quoted(state)}")
        found: Mapping[str, Any] = state
        return found


def _envelope(session_id: str, **more: object) -> dict[str, Any]:
    """The session has one invocation, which goes by the session's name."""
    return {"_agentcore_runtime": {"version": 1, "invocation_id": session_id, **more}}


def _is_state(answer: Any, session_id: str) -> bool:
    return (
        isinstance(answer, Mapping)
        and answer.get("version") == 1
        and answer.get("invocation_id") == session_id
        and answer.get("status") in _STATUSES
    )


def _answer_of(answer: Any, input_id: str) -> AgentResult:
    """Of an app without the envelope."""
    if not isinstance(answer, Mapping) or answer.get("status") != "processing":
        return read_result(answer, input_id)
    return AgentResult("error", error="its program leaves results in S3: give agentcore_bucket")


def _result_of(state: Mapping[str, Any], input_id: str) -> AgentResult | None:
    """``None`` while it is at work."""
    status, error = state["status"], state.get("error")
    if status == "in_progress":
        return None
    if status != "completed":
        return AgentResult("error", error=f"AgentCore ended its session early ({status})")
    if error is not None:
        return AgentResult("failed", error=str(error))
    return read_result(state.get("result"), input_id)
