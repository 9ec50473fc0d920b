"""Rows: token sequences for training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from .records import FORMER_NAMES, EngineRequest, RowFields, TurnFields

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Turn(TurnFields):
    """A turn in a row."""

    #: The engine requests of a turn that continued after a cut (``--continue-responses``); empty for a single request.
    engine_requests: Sequence[EngineRequest] = ()
    #: All fields of the proxy's response.
    fields: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Row(RowFields):
    """A token sequence of a session; the ``response_`` lists have equal lengths."""

    session_id: str
    turns: Sequence[Turn]
    #: All fields of the proxy's response except the lists of tokens; includes the requested details (docs/details.md).
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
        """Splits numbers per response token by turn, for ``Session.add``; only turns that this row trains are included.

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

T = TypeVar("T", Row, Turn, EngineRequest)


def parse_rows(response: Mapping[str, Any]) -> list[Row]:
    """Returns the rows of a response of ``GET /sessions/{id}/trajectories``."""
    return [parse_row(response["session_id"], row) for row in response["trajectories"]]


def parse_row(session_id: str, row: Mapping[str, Any]) -> Row:
    """Returns a row of a session from its JSON."""
    turns = [_create(Turn, turn, engine_requests=_parse_requests(turn), fields=turn) for turn in row["turns"]]
    others = {name: value for name, value in row.items() if name not in _LISTS}
    return _create(Row, row, session_id=session_id, turns=turns, fields=others)


def _parse_requests(turn: Mapping[str, Any]) -> list[EngineRequest]:
    return [_create(EngineRequest, request) for request in turn.get("engine_requests", [])]


def _create(kind: type[T], values: Mapping[str, Any], **own: Any) -> T:
    """Creates an object from ``own`` and, for its other fields, from the values of the same names.

    Proxies of earlier releases omit fields that have a default, and use the former names of others.
    """
    names = [spec.name for spec in fields(kind) if spec.name not in own]
    former = {name: values[FORMER_NAMES[name]] for name in names if FORMER_NAMES.get(name) in values}
    present = {name: values[name] for name in names if name in values}
    return kind(**own, **{**former, **present})
