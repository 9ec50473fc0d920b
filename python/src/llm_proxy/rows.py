"""Rows that a trainer can train on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Turn:
    """One turn in a row."""

    turn_id: str
    index: int
    #: The span of its completion in ``response_ids``.
    start: int
    end: int
    #: Whether the mask is 1 in the span; if not, another row trains it.
    trained: bool
    #: The turn's own reward; ``None``: none.
    reward: float | None
    finish_reason: str | None
    weight_version_start: str | None
    weight_version_end: str | None
    #: All fields of the proxy's response.
    fields: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Row:
    """One sequence of a session; the lists of the response are equally long."""

    session_id: str
    prompt_ids: list[int]
    response_ids: list[int]
    #: 1 for sampled tokens that this row trains, else 0.
    response_mask: list[int]
    #: Natural logarithms, as the engine reported them; 0.0 where the mask is 0.
    response_logprobs: list[float]
    turns: Sequence[Turn]
    reward: float | None
    #: ``False``: the engine did not report exact ids, and the row contains none.
    exact: bool
    #: Whether the session was completed.
    finished: bool
    truncated: bool
    finish_reason: str | None
    #: ``None`` if the version of one turn is unknown.
    weight_version_min: str | None
    weight_version_max: str | None
    #: All fields of the proxy's response except the lists of tokens: ``line``, ``reward_components``, and the requested
    #: details (docs/details.md).
    fields: Mapping[str, Any] = field(repr=False)

    def arrays(self) -> dict[str, NDArray[np.int64] | NDArray[np.float64]]:
        """Returns the four lists as NumPy arrays, logprobs as float64; needs NumPy."""
        import numpy as np

        return {
            "prompt_ids": np.array(self.prompt_ids, np.int64),
            "response_ids": np.array(self.response_ids, np.int64),
            "response_mask": np.array(self.response_mask, np.int64),
            "response_logprobs": np.array(self.response_logprobs, np.float64),
        }

    def of_turns(self, **numbers: Sequence[float | None]) -> dict[str, dict[str, list[float | None]]]:
        """Converts numbers per token of the response for ``Session.add``: by turn, of turns that this row trains.

        :param numbers: lists as long as the response: ``advantages``, ``ratios``, ``entropies``, ``loss_weights``
        """
        for name, values in numbers.items():
            if len(values) != len(self.response_ids):
                raise ValueError(f"{name} has {len(values)} numbers for {len(self.response_ids)} tokens")
        return {
            turn.turn_id: {
                name: [None if value is None else float(value) for value in values[turn.start : turn.end]]
                for name, values in numbers.items()
            }
            for turn in self.turns
            if turn.trained and turn.end > turn.start
        }


_LISTS = ("prompt_ids", "response_ids", "response_mask", "response_logprobs")

T = TypeVar("T", Row, Turn)


def rows_of(answer: Mapping[str, Any]) -> list[Row]:
    """Returns the rows of a response of ``GET /sessions/{id}/trajectories``."""
    return [row_of(answer["session_id"], row) for row in answer["trajectories"]]


def row_of(session_id: str, row: Mapping[str, Any]) -> Row:
    """Returns one row of such a response."""
    turns = [_made(Turn, turn, fields=turn) for turn in row["turns"]]
    others = {name: value for name, value in row.items() if name not in _LISTS}
    return _made(Row, row, session_id=session_id, turns=turns, fields=others)


def _made(kind: type[T], told: Mapping[str, Any], **own: Any) -> T:
    """Creates an object from the proxy's fields of the same names, except those that are given."""
    return kind(**own, **{spec.name: told[spec.name] for spec in fields(kind) if spec.name not in own})
