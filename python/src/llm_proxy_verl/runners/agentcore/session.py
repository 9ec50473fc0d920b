"""One session of AgentCore, and the port of the ways in which results come back."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..runner import AgentResult, AgentTask

#: Of what the session's name says of the trial.
_NAME_LENGTH = 100


@dataclass
class AgentCoreSession:
    """Runs the agent of one try."""

    #: 33 to 256 characters, without ``_``.
    id: str
    #: The try's own, by which its result is known again.
    input_id: str
    #: What the agent is given, but for what the way of its result adds.
    payload: Mapping[str, Any]
    #: Where the agent's LLM is, for the payload.
    model: Mapping[str, str]
    sampling_params: Mapping[str, Any]
    #: Whether the session may have come to be; set right before it may.
    is_begun: bool = False

    @classmethod
    def of(cls, task: AgentTask) -> AgentCoreSession:
        """A new one for a try."""
        name = re.sub(r"[^A-Za-z0-9]+", "-", task.session_id)[:_NAME_LENGTH]
        given = task.sample.get("payload")
        return cls(
            id=f"llm-proxy-{name}-{uuid.uuid4()}",
            input_id=re.sub(r"[^A-Za-z0-9.~:-]", "-", task.session_id),
            payload=given if isinstance(given, Mapping) else task.sample,
            model={
                "base_url": task.openai_base_url,
                "api_key": task.api_key,
                "model_id": task.model_name or "default",
            },
            sampling_params=task.sampling_params,
        )


class ResultSource(Protocol):
    """One way in which results come back."""

    async def prepare(self) -> None:
        """:raises ConfigError: when what it reads from is not there"""

    async def run(self, session: AgentCoreSession) -> AgentResult:
        """Starts the agent and waits for its result.

        :raises RefusalError: of AgentCore
        """

    async def last_look(self, session: AgentCoreSession) -> AgentResult | None:
        """One look for a result when the time is up; raises when it cannot be told."""

    async def close(self) -> None:
        """Ends what it does in the background."""
