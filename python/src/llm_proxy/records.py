"""The fields of rows, generated from src/protocol/schema/row.ts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: The names that proxies of 0.1.0 use.
FORMER_NAMES = {
    "agent_role": "line",
    "agent_role_rule": "line_rule",
    "agent_roles": "lines",
    "padding": "inert",
    "recovered_at_index": "resumed_at",
    "reward_agent_roles": "reward_lines",
    "turn_labels": "marked_turns",
}


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """An engine request of a response that continued after its engine request was cut."""

    #: Index of its first token, in the same sequence as the offsets of the turn
    start: int
    #: Index after its last token; equal to ``start`` if it has no tokens
    end: int
    #: The engine; ``None``: none accepted it
    engine: str | None
    #: The weights that sampled it; ``None``: unknown, or several
    weight_version: str | None
    request_id: str
    #: The finish reason, ``abort``, or the code of the error that cut it
    end_reason: str


@dataclass(frozen=True, kw_only=True)
class TurnFields:
    """The span of a turn in a row."""

    turn_id: str
    #: The position of the turn in its session, from 0
    index: int
    #: ``main``, ``compaction``, ``side`` or ``subagent:…``; see docs/lines.md
    agent_role: str
    #: The model that the policies of the session assign to it; ``None``: none
    policy: str | None
    #: Start of its completion: an index into ``response_ids``
    start: int
    #: End of its completion; equal to ``start`` if truncation removed the turn
    end: int
    #: Whether the mask is 1 in the span; if not, another row trains the turn
    trained: bool
    #: The turn's own reward; ``None``: none
    reward: float | None
    #: Labels by people
    labels: Sequence[str]
    finish_reason: str | None
    weight_version_start: str | None
    weight_version_end: str | None


@dataclass(frozen=True, kw_only=True)
class RowFields:
    """The fields of a row, without its turns."""

    #: ``main``, ``compaction``, ``side`` or ``subagent:…``; see docs/lines.md
    agent_role: str
    #: The policy of all its turns; ``None``: none, or several; see docs/lines.md
    policy: str | None
    #: Whether the session was completed; false: aborted, or still active
    finished: bool
    #: The prompt of its first turn
    prompt_ids: list[int]
    #: Completions, and the tokens between them
    response_ids: list[int]
    #: 1 on sampled tokens that this row trains, else 0; as long as ``response_ids``
    response_mask: list[int]
    #: Natural logarithms, as the engine reported them; 0.0 where the mask is 0; as long as ``response_ids``
    response_logprobs: list[float]
    #: The number of its turns
    num_turns: int
    #: The finish reason of its last turn
    finish_reason: str | None
    #: The lowest, or highest, version of the turns whose tokens the row contains, compared as numbers if all
    #: are numbers, else the first, or last; ``None`` if one is unknown: the row may contain tokens of any age
    weight_version_min: str | None
    #: The lowest, or highest, version of the turns whose tokens the row contains, compared as numbers if all
    #: are numbers, else the first, or last; ``None`` if one is unknown: the row may contain tokens of any age
    weight_version_max: str | None
    #: The number of turns with an unknown version at the start or the end, or in an engine request
    unversioned_turns: int
    #: The reward of its agent role, or of the session
    reward: float | None
    reward_components: Mapping[str, float]
    #: Labels by people
    labels: Sequence[str]
    #: False: the row is one turn without exact ids, with empty lists
    exact: bool
    #: Why it is not exact
    inexact_reason: str | None
    #: Whether ``response_length`` or the engine truncated it
    truncated: bool
    #: Whether ``prompt_length`` truncated it
    prompt_truncated: bool
