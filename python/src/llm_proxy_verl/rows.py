"""Converts the result of a rollout to rows for verl."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .details import unpack_experts


@dataclass(frozen=True)
class Row:
    """A token sequence; the ``response_`` lists have equal lengths."""

    prompt_ids: list[int]
    response_ids: list[int]
    #: 1 for sampled tokens that this row trains, otherwise 0.
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
    #: verl's ``global_steps``; ``None`` if the engine did not report them for every turn, or not as numbers.
    min_global_steps: int | None = None
    max_global_steps: int | None = None
    #: A NumPy array with a row for each token of prompt and response before the first without reported experts.
    routed_experts: Any = None
    #: ``data:`` URLs of the images whose tokens are in the row, in order.
    images: Sequence[str] = ()

    @property
    def trained_tokens(self) -> int:
        """The number of tokens with mask 1."""
        return sum(self.response_mask)

    @property
    def has_steps(self) -> bool:
        """Whether the first and the last step of the row's weights are known."""
        return self.min_global_steps is not None and self.max_global_steps is not None


@dataclass(frozen=True)
class RolloutResult:
    """The outcome of a rollout, with at least one row."""

    rows: Sequence[Row]
    #: ``None`` for a rollout without a reward.
    reward: float | None
    #: The ``metrics`` of docs/rollouts.md, and ``left_out_turns``.
    numbers: Mapping[str, Any]
    #: The ``extra_fields`` of docs/rollouts.md, of the first row.
    about: Mapping[str, Any]


def parse_result(response: Mapping[str, Any], filler_id: int) -> RolloutResult:
    """Converts the response of a rollout server.

    :param filler_id: any id of the vocabulary, for a padding row
    """
    first = response["rows"][0]
    rows = [_parse_row(row, response.get("images") or {}) for row in response["rows"]]
    # Rollout servers of 0.1.0 report it as ``inert``.
    padding = first["metrics"].get("padding", first["metrics"].get("inert"))
    if padding:
        rows = [dataclasses.replace(row, prompt_ids=[filler_id], response_ids=[filler_id]) for row in rows]
    return RolloutResult(
        rows=sort_rows(rows),
        reward=response["reward"],
        numbers={
            **first["metrics"],
            "padding": padding,
            "inert": padding,
            "left_out_turns": response["left_out_turns"],
        },
        about=first["extra_fields"],
    )


def sort_rows(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows in the order for verl: the one with the most trained tokens is last.

    verl applies the reward and the advantage of the last output to all outputs of a rollout, and reads the advantage
    at a token with mask 1.
    """
    return sorted(rows, key=lambda row: row.trained_tokens)


def _parse_row(row: Mapping[str, Any], images: Mapping[str, str]) -> Row:
    fields = row["extra_fields"]
    return Row(
        prompt_ids=row["prompt_ids"],
        response_ids=row["response_ids"],
        response_mask=row["response_mask"],
        response_logprobs=row["response_logprobs"],
        num_turns=row["num_turns"],
        finish_reason=fields["finish_reason"],
        finished=fields["finished"],
        truncated=fields["truncated"],
        turn_rewards=fields["turn_rewards"],
        prompt_truncated=fields["prompt_truncated"],
        min_global_steps=parse_step(fields["weight_version_min"]),
        max_global_steps=parse_step(fields["weight_version_max"]),
        routed_experts=unpack_experts(row),
        images=[images[image["sha256"]] for image in row.get("images", ())],
    )


def parse_step(weight_version: str | None) -> int | None:
    """Returns the verl step that a weight version names; ``None`` if it is not an integer."""
    return int(weight_version) if weight_version is not None and weight_version.isdecimal() else None
