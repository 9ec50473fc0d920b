"""Replaces the rollout gateway of AgentCore's toolkit 0.2 by llm-proxy, for the toolkit's unmodified verl loop.

``VERL_USE_EXTERNAL_MODULES`` names this module, so verl imports it in each of its processes (docs/gateway.md), and the
toolkit's ``AgentCoreAgentLoop`` gets its gateway from this module. The gateway has the methods that the loop calls. The
loop does not await ``create_session`` and ``turn_count``, so they block its thread during a request to the proxy.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import agentcore_rl_toolkit.backends.verl.gateway_host  # noqa: F401
from agentcore_rl_toolkit.rollout_gateway import BaseTrace, TraceRecord

from llm_proxy import Client, ProxyApiError, Row
from llm_proxy.api import get_open_key

from .config import RemoteAgentConfig
from .errors import ConfigError
from .process import shared_resources
from .rows import parse_step
from .verl_engine import VerlEngine

logger = logging.getLogger(__name__)

#: Sampling parameters whose names in the toolkit and in the proxy differ.
_RENAMED = {"max_new_tokens": "max_tokens"}


class ProxyGateway:
    """The gateway of all agent loops of a process, which is also the toolkit's handle, manager and backend.

    :param server_manager: verl's client of its engines, which this process offers to a proxy in relay mode
    :param max_turns: maximum number of turns of a session; ``None``: no limit
    """

    def __init__(
        self, config: RemoteAgentConfig, server_manager: Any, tokenizer: Any, max_turns: int | None
    ) -> None:
        self.base_url = _build_agent_url(config)
        self.gateway = self.manager = self.backend = self
        self._client = Client(config.proxy_urls[0], next(iter(config.admin_key), None))
        self._limits = {} if max_turns is None else {"turns": max_turns, "at_limit": "error"}
        self._context: dict[str, int] = {}
        self._steps: dict[str, dict[str, int]] = {}
        rollout = server_manager.config.actor_rollout_ref.rollout
        self._worker_start = asyncio.get_running_loop().create_task(
            shared_resources().offer_engine(
                config, server_manager, lambda: VerlEngine.of(server_manager, rollout, tokenizer)
            )
        )

    def create_session(
        self, sid: str, *, sampling_defaults: Mapping[str, Any] | None = None, max_context_tokens: int = 0
    ) -> None:
        """Creates a session whose sampling parameters override those of the agent."""
        sampling = {_RENAMED.get(name, name): value for name, value in (sampling_defaults or {}).items()}
        session = self._client.create(sid, sampling_params=sampling, limits=self._limits or None)
        if session.agent_key != get_open_key(session.id):
            raise ConfigError(
                f"the proxy at {self._client.url} requires keys, but agents of the toolkit send their session id as "
                "the key: start the proxy without keys (--open), on a network of trusted programs"
            )
        self._context[sid] = max_context_tokens

    def turn_count(self, sid: str) -> int:
        """Returns the number of turns of a session; 0 if it does not exist."""
        try:
            return int(self._client.session(sid).info()["turn_count"])
        except ProxyApiError as error:
            if error.status == 404:
                return 0
            raise

    async def finish_session(
        self, sid: str, *, base_sample: BaseTrace | None = None, reward: float = 0.0, **_: Any
    ) -> list[TraceRecord]:
        """Completes the session and returns its rows, truncated to ``max_context_tokens``."""
        await self._worker_start
        rows = await asyncio.to_thread(self._complete_session, sid)
        max_context = self._context.pop(sid, 0) or sys.maxsize
        self._steps[sid] = _parse_steps(rows)
        rollout_id = None if base_sample is None else base_sample.rollout_id
        return [
            _build_trace(row, max_context - len(row.prompt_ids), rollout_id, reward)
            for row in rows
            if any(row.response_mask[: max(0, max_context - len(row.prompt_ids))])
        ]

    def pop_extra_fields(self, sid: str) -> dict[str, Any]:
        """Returns and forgets the verl steps that sampled the session, if the engines reported them."""
        return dict(self._steps.pop(sid, {}))

    def _complete_session(self, sid: str) -> list[Row]:
        session = self._client.session(sid)
        session.complete()
        return session.rows()


def get_or_start_gateway(
    *, server_manager: Any, tokenizer: Any, max_turns_per_sid: int | None = None, **ignored: Any
) -> ProxyGateway:
    """Replaces the toolkit's function of this name.

    Arguments for the toolkit's server and its prompts are ignored, because the proxy's configuration applies.
    """
    global _gateway
    if _gateway is None:
        _gateway = ProxyGateway(RemoteAgentConfig.load(), server_manager, tokenizer, max_turns_per_sid)
        if ignored.get("history_mode", "tree") != "tree" or ignored.get("chat_template_kwargs"):
            logger.warning(
                "history_mode and chat_template_kwargs have no effect: the configuration of the proxy applies"
            )
    return _gateway


_gateway: ProxyGateway | None = None


def _build_agent_url(config: RemoteAgentConfig) -> str:
    url = urlsplit(config.proxy_urls[0])
    host = config.agent_host or url.netloc
    has_port = urlsplit(f"//{host}").port is not None
    port = "" if has_port or url.port is None else f":{url.port}"
    return urlunsplit((url.scheme, host + port, url.path.rstrip("/"), "", ""))


def _build_trace(row: Row, max_tokens: int, rollout_id: str | int | None, reward: float) -> TraceRecord:
    response = row.response_ids[:max_tokens]
    return TraceRecord(
        token_ids=row.prompt_ids + response,
        loss_mask=row.response_mask[:max_tokens],
        logprobs=row.response_logprobs[:max_tokens],
        response_length=len(response),
        rollout_id=rollout_id,
        reward=reward,
        metadata={"session_id": row.session_id, "agent_role": row.agent_role, "line": row.agent_role},
    )


def _parse_steps(rows: Sequence[Row]) -> dict[str, int]:
    first = [parse_step(row.weight_version_min) for row in rows]
    last = [parse_step(row.weight_version_max) for row in rows]
    reported = [step for step in (*first, *last) if step is not None]
    return {"min_global_steps": min(reported), "max_global_steps": max(reported)} if reported else {}


# Modules that were imported before this one already have a reference to the toolkit's function.
for _name in ("gateway_host", "agent_loop"):
    if (_module := sys.modules.get(f"agentcore_rl_toolkit.backends.verl.{_name}")) is not None:
        _module.get_or_start_gateway = get_or_start_gateway  # type: ignore[attr-defined]
