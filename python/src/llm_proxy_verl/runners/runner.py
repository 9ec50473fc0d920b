"""The port between a rollout and whatever runs its agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

#: - ``completed``: the agent came to its own end, whatever it achieved.
#: - ``timeout``: it was stopped because its time was up.
#: - ``failed``: it crashed, or gave up.
#: - ``error``: it could not be run, or its result could not be found out.
AgentStatus = Literal["completed", "timeout", "failed", "error"]


@dataclass(frozen=True)
class AgentTask:
    """What a runner needs to know to run an agent once."""

    #: One rollout, the same for all its tries.
    trial_id: str
    #: The session of this try.
    session_id: str
    #: 1 for the first try.
    try_number: int
    #: The dataset's row, as JSON; a copy that is this try's own.
    sample: Mapping[str, Any]
    #: The task's directory; ``None`` when the row has none.
    task_path: Path | None
    sampling_params: Mapping[str, Any]
    #: Base URL of an OpenAI client, which ends in ``/v1``.
    openai_base_url: str
    #: Base URL of an Anthropic client, which appends ``/v1/messages`` itself.
    anthropic_base_url: str
    #: With it the agent calls, and can do nothing else.
    api_key: str
    model_name: str | None
    #: Returns how the session ended (``completed`` or ``aborted``), for agents that end it themselves.
    until_ended: Callable[[], Awaitable[str]]

    def environment(self) -> dict[str, str]:
        """The variables by which the clients of OpenAI, LiteLLM, Anthropic and Claude Code find the session.

        An Anthropic key would be sent beside the session's, so that it is set to nothing.
        """
        variables = {
            "OPENAI_BASE_URL": self.openai_base_url,
            "OPENAI_API_BASE": self.openai_base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.anthropic_base_url,
            "ANTHROPIC_AUTH_TOKEN": self.api_key,
            "ANTHROPIC_API_KEY": "",
        }
        if self.model_name is not None:
            variables |= {"OPENAI_MODEL": self.model_name, "ANTHROPIC_MODEL": self.model_name}
        return variables


@dataclass(frozen=True)
class AgentResult:
    """How one try ended."""

    status: AgentStatus
    #: Named parts of the reward; empty when the runner knows of none.
    rewards: Mapping[str, float] = field(default_factory=dict)
    #: Why it is not ``completed``.
    error: str | None = None


class AgentRunner(ABC):
    """Runs agents. Most have nothing to look for, and nothing to end."""

    async def prepare(self) -> None:  # noqa: B027
        """Looks for what it needs, before each rollout.

        :raises ConfigError: that says what is not there
        """

    @abstractmethod
    async def run(self, task: AgentTask) -> AgentResult:
        """Runs one agent to its end, or to its cancellation. What it raises counts as an ``error`` of the try."""

    async def close(self) -> None:  # noqa: B027
        """Ends what it has begun. Nothing is run any more."""
