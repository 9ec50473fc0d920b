"""verl's rollout servers as an object in this process, behind verl's own client (or the fake's)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

#: `<|im_end|>` of the embedded model.
END_OF_TURN = 2041


class Config(dict[str, Any]):
    """A dictionary whose keys are also attributes, as in verl's configuration."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def trainer_config(**rollout: Any) -> Config:
    defaults = {"name": "vllm", "prompt_length": 4096, "response_length": 4096, "max_model_len": None}
    return Config(
        actor_rollout_ref=Config(rollout=Config({**defaults, **rollout})),
        data=Config(),
        transfer_queue=Config(enable=False),
    )


@dataclass
class SampledRequest:
    """A request as the server received it, with its output."""

    prompt_ids: list[int]
    sampling_params: dict[str, Any]
    output: TokenOutput


Script = Callable[[list[int], dict[str, Any]], Awaitable[TokenOutput]]


def completion(prompt_ids: list[int], count: int = 6, step: int | None = 3) -> TokenOutput:
    """Returns words of the embedded model's vocabulary, the same for each prompt, and the end of the turn."""
    draw = random.Random(len(prompt_ids) * 7919 + sum(prompt_ids))
    ids = [draw.randrange(300, 2000) for _ in range(count - 1)]
    extra = {} if step is None else {"global_steps": step}
    return TokenOutput(
        token_ids=[*ids, END_OF_TURN],
        log_probs=[-draw.random() for _ in range(count)],
        stop_reason="completed",
        extra_fields=extra,
    )


async def _complete_immediately(prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
    return completion(prompt_ids)


@dataclass
class RolloutServers:
    """Completes requests by `script`; `requests` lists the completed ones."""

    script: Script = _complete_immediately
    requests: list[SampledRequest] = field(default_factory=list)
    started: int = 0
    cancelled: int = 0
    sticky_ids: list[str] = field(default_factory=list)

    def client(self, config: Any = None) -> LLMServerClient:
        return LLMServerClient(config or trainer_config(), load_balancer_handle=_Actor(self))

    # The methods of Ray actors that verl's client calls.

    async def acquire_server(self, request_id: str, **_fields: Any) -> tuple[str, Any]:
        self.sticky_ids.append(request_id)
        return "server-0", _Actor(self)

    async def require_acquire_fields(self) -> list[str]:
        return []

    async def require_release_fields(self) -> list[str]:
        return []

    async def release_server(self, server_id: str, **_fields: Any) -> None:
        pass

    async def generate(
        self, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_fields: Any
    ) -> TokenOutput:
        self.started += 1
        params = dict(sampling_params)
        # verl's servers empty the dictionary when they read it.
        sampling_params.clear()
        try:
            output = await self.script(prompt_ids, params)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.requests.append(SampledRequest(list(prompt_ids), params, output.model_copy(deep=True)))
        return output


class _Actor:
    """A handle whose methods are called with `.remote(...)`."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return _Method(getattr(self._target, name))


class _Method:
    def __init__(self, method: Any) -> None:
        self._method = method

    def remote(self, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        # A call of an actor runs even if no caller waits for it.
        return asyncio.ensure_future(self._method(*args, **kwargs))


class Tokenizer:
    """The part of a tokenizer that is called."""

    eos_token_id = END_OF_TURN
    pad_token_id = 2039

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return " ".join(str(token) for token in token_ids)
