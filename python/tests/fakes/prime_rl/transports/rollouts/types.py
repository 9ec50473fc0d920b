"""prime-rl's `src/prime_rl/transports/rollouts/types.py` at 559b447: the fields of a sample."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TrainingSample:
    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    ref_logprobs: list[float] | None = None
    rl_weights: list[float] | None = None
    ce_weights: list[float] | None = None
    ref_kl_weights: list[float] | None = None
    advantages: list[float] | None = None
