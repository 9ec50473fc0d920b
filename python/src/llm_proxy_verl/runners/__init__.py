"""What runs agents: each runner behind the port of :mod:`.runner`."""

from __future__ import annotations

import aiohttp

from ..config import RemoteAgentConfig
from .agentcore import AgentCoreRunner
from .command import CommandRunner
from .harbor import HarborRunner
from .runner import AgentResult, AgentRunner, AgentTask
from .webhook import WebhookRunner

__all__ = ["AgentResult", "AgentRunner", "AgentTask", "make_runner"]


def make_runner(config: RemoteAgentConfig, http: aiohttp.ClientSession) -> AgentRunner:
    """The runner that the configuration names."""
    if config.runner == "command":
        return CommandRunner(config)
    if config.runner == "http":
        return WebhookRunner(config, http)
    if config.runner == "agentcore":
        return AgentCoreRunner(config)
    return HarborRunner(config, http)
