"""Converts a rollout's result to rows for verl."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .details import unpack_experts


@dataclass(frozen=True)
class Row:
    """One sequence; the lists of the response are equally long."""

    prompt_ids: list[int]
    response_ids: list[int]
    #: 1 for sampled tokens that this row trains, else 0.
    response_mask: list[int]
    #: Natural logarithms; 0.0 where the mask is 0.
    response_logprobs: list[float]
    #: Number of turns in this row.
    num_turns: int
    finish_reason: str | None = None
    #: Whether the session was completed.
    finished: bool = False
    truncated: bool = False
    #: ``start``, ``end`` and ``reward`` of each turn with its own reward.
    turn_rewards: Sequence[Mapping[str, Any]] = ()
    prompt_truncated: bool = False
    #: verl's ``global_steps``; ``None`` if the engine did not report them for every turn.
    min_global_steps: int | None = None
    max_global_steps: int | None = None
    #: A NumPy array with a row for each token of prompt and response up to the first without reported experts.
    routed_experts: Any = None
    #: ``data:`` URLs of the images whose tokens are in the row, in order.
    images: Sequence[str] = ()

    @property
    def trained_tokens(self) -> int:
        """The number of tokens with mask 1."""
        return sum(self.response_mask)


@dataclass(frozen=True)
class RolloutResult:
    """One rollout: at least one row, and the outcome."""

    rows: Sequence[Row]
    #: ``None`` if there is none.
    reward: float | None
    #: The names of ``metrics`` in docs/rollouts.md, and ``left_out_turns``.
    numbers: Mapping[str, Any]
    #: The names of ``extra_fields`` there, of the first row.
    about: Mapping[str, Any]


def parse_result(answer: Mapping[str, Any], filler_id: int) -> RolloutResult:
    """Converts the response of a rollout server; the row with the most trained tokens is last. verl treats the last of
    several outputs as the rollout's final one: it takes the reward and the advantage of all from it, the latter from
    a token with mask 1.

    :param filler_id: any id of the vocabulary, for a row that trains nothing
    """
    first = answer["rows"][0]
    rows = [_parse_row(row, answer.get("images") or {}) for row in answer["rows"]]
    # Rollout servers of 0.1.0 report it as ``inert``.
    padding = first["metrics"].get("padding", first["metrics"].get("inert"))
    if padding:
        rows = [dataclasses.replace(row, prompt_ids=[filler_id], response_ids=[filler_id]) for row in rows]
    return RolloutResult(
        rows=sorted(rows, key=lambda row: row.trained_tokens),
        reward=answer["reward"],
        numbers={
            **first["metrics"],
            "padding": padding,
            "inert": padding,
            "left_out_turns": answer["left_out_turns"],
        },
        about=first["extra_fields"],
    )


def _parse_row(row: Mapping[str, Any], images: Mapping[str, str]) -> Row:
    about = row["extra_fields"]
    return Row(
        prompt_ids=row["prompt_ids"],
        response_ids=row["response_ids"],
        response_mask=row["response_mask"],
        response_logprobs=row["response_logprobs"],
        num_turns=row["num_turns"],
        finish_reason=about["finish_reason"],
        finished=about["finished"],
        truncated=about["truncated"],
        turn_rewards=about["turn_rewards"],
        prompt_truncated=about["prompt_truncated"],
        min_global_steps=parse_step(about["weight_version_min"]),
        max_global_steps=parse_step(about["weight_version_max"]),
        routed_experts=unpack_experts(row),
        images=[images[image["sha256"]] for image in row.get("images", ())],
    )


def parse_step(weight_version: str | None) -> int | None:
    """Returns verl's step, an integer; ``None`` for a weight version of another engine."""
    return int(weight_version) if weight_version is not None and weight_version.isdecimal() else None
