"""A session's trajectories as the rows that a trainer gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .details import experts_of
from .runners.runner import AgentStatus


@dataclass(frozen=True)
class Row:
    """One sequence; the lists of the response are equally long."""

    prompt_ids: list[int]
    response_ids: list[int]
    #: 1 on tokens that were sampled and that this row trains, else 0.
    response_mask: list[int]
    #: Natural logarithms; 0.0 where the mask is 0.
    response_logprobs: list[float]
    #: LLM calls in this row.
    num_turns: int
    finish_reason: str | None = None
    #: Whether the session was completed.
    finished: bool = False
    truncated: bool = False
    prompt_truncated: bool = False
    #: verl's ``global_steps``; ``None`` where the engine did not tell them for every turn.
    min_global_steps: int | None = None
    max_global_steps: int | None = None
    #: A NumPy array, a row for each token of prompt and response up to the first that no engine told.
    routed_experts: Any = None
    #: ``data:`` URLs of the images whose tokens are in the row, in order.
    images: Sequence[str] = ()

    @property
    def trained_tokens(self) -> int:
        """Tokens with mask 1."""
        return sum(self.response_mask)


@dataclass(frozen=True)
class SessionFacts:
    """What a session has beside its rows; nothing, for that of a try that failed."""

    #: ``None`` when nobody gave one.
    reward: float | None = None
    reward_components: Mapping[str, float] = field(default_factory=dict)
    #: Rows that the session has, whether or not verl gets them.
    num_rows: int = 0
    #: Turns without exact token ids, which are in no row.
    inexact_turns: int = 0
    #: Turns that are in no row that verl gets, because it takes one of several.
    left_out_turns: int = 0


@dataclass(frozen=True)
class RolloutResult:
    """One rollout: at least one row, and what became of it."""

    rows: Sequence[Row]
    trial_id: str
    #: The session of the try that counts.
    session_id: str
    agent_status: AgentStatus
    #: Why the row is inert, or why the agent did not complete; ``None`` if it did.
    error: str | None
    tries: int
    #: From the start of the first try to the end of the last, waits between tries included.
    agent_seconds: float
    #: What the session of the try that counts recorded beside the rows.
    session: SessionFacts
    #: No try came to a good end.
    failed: bool = False
    #: There is nothing to train on; the row is there only so that the sample has one.
    inert: bool = False


def rows_of(trajectories: Sequence[Mapping[str, Any]], images: Mapping[str, str] | None = None) -> list[Row]:
    """The rows that train something, that with the most trained tokens last.

    verl takes the last of several outputs for the rollout's final one: it takes the reward and the advantage of all
    from it, the latter from a token with mask 1.

    :param images: URLs by the names that the rows have for them
    """
    rows = [_row_of(row, images or {}) for row in trajectories if row["exact"]]
    return sorted((row for row in rows if row.trained_tokens > 0), key=lambda row: row.trained_tokens)


def inert_row(filler_id: int) -> Row:
    """A row of which no token trains.

    It has one token each for prompt and response, because verl puts the reward on the last token of a response and
    pads from what is there; which one does not matter, as its mask is 0.
    """
    return Row([filler_id], [filler_id], [0], [0.0], num_turns=0)


def why_inert(session: Mapping[str, Any]) -> str:
    """Why a session has no row that trains."""
    inexact = [row["inexact_reason"] for row in session["trajectories"] if not row["exact"]]
    if inexact:
        return f"its turns are not exact: {inexact[0]}"
    if session["trajectories"]:
        return "no sampled token is left of its rows"
    others = [f"{count} {status}" for status, count in session["excluded_turns"].items() if count > 0]
    return f"no call came to its end: {', '.join(others)}" if others else "the agent made no call"


def _row_of(row: Mapping[str, Any], images: Mapping[str, str]) -> Row:
    return Row(
        prompt_ids=row["prompt_ids"],
        response_ids=row["response_ids"],
        response_mask=row["response_mask"],
        response_logprobs=row["response_logprobs"],
        num_turns=row["num_turns"],
        finish_reason=row["finish_reason"],
        finished=row["finished"],
        truncated=row["truncated"],
        prompt_truncated=row["prompt_truncated"],
        min_global_steps=_step_of(row["weight_version_min"]),
        max_global_steps=_step_of(row["weight_version_max"]),
        routed_experts=experts_of(row),
        images=[images[image["sha256"]] for image in row.get("images", ())],
    )


def _step_of(weight_version: str | None) -> int | None:
    """verl's steps are integers; another engine's word for its weights is none."""
    return int(weight_version) if weight_version is not None and weight_version.isdecimal() else None
