"""Rows with each token once, packed for tree attention (docs/your-trainer.md).

A forest is packed in depth-first order: whatever follows a token in some row follows it here, at once, until its
``end``. So a token sees exactly those of its own rows if it attends to ``key`` where ``key <= query < end[key]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .rows import Row, parse_row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_OF_A_FOREST = ("session_id", "leaf", "prompt_tokens", "response_tokens")


@dataclass(frozen=True)
class PackedForest:
    """Rows as one sequence of ``T`` tokens; all arrays but the last two are as long."""

    #: int64: token ids.
    ids: NDArray[np.int64]
    #: int64: the position of each token in its rows, from 0, for rotary embeddings.
    positions: NDArray[np.int64]
    #: int64: the exclusive end of the tokens that attend to this one. ``(key <= query) & (query < end[key])`` is the
    #: mask.
    end: NDArray[np.int64]
    #: int64: the token whose logits predict this one; -1 of the first token of a row.
    before: NDArray[np.int64]
    #: int64: the index in ``rows`` of the row that trains the token; -1: none, the loss mask is 0.
    trained_by: NDArray[np.int64]
    #: float64: natural logarithms, as the engine reported them; 0.0 where no row trains the token.
    logprobs: NDArray[np.float64]
    #: float64: the reward of the row that trains the token; NaN where there is none.
    rewards: NDArray[np.float64]
    #: For each row, int64: the positions of its tokens, prompt and response.
    tokens: Sequence[NDArray[np.int64]]
    #: For each row, its fields in the forest.
    rows: Sequence[Mapping[str, Any]] = field(repr=False)

    @property
    def loss_mask(self) -> NDArray[np.bool_]:
        """bool: whether each token is trained."""
        mask: NDArray[np.bool_] = self.trained_by >= 0
        return mask

    def attention_mask(self) -> NDArray[np.bool_]:
        """bool, ``(T, T)``: whether the token of a line attends to that of a column. For tests and short sequences."""
        import numpy as np

        places = np.arange(len(self.ids))
        mask: NDArray[np.bool_] = (places <= places[:, None]) & (places[:, None] < self.end)
        return mask

    def of_rows(self, numbers: Sequence[float] | NDArray[Any]) -> list[NDArray[Any]]:
        """Converts numbers per token of the sequence to numbers per token of each row's response."""
        import numpy as np

        values = np.asarray(numbers)
        return [
            values[places[row["prompt_tokens"] :]] for places, row in zip(self.tokens, self.rows, strict=True)
        ]

    def unpack(self) -> list[Row]:
        """Returns the original rows."""
        return [self._row(place) for place in range(len(self.rows))]

    def _row(self, place: int) -> Row:
        import numpy as np

        row, places = self.rows[place], self.tokens[place]
        prompt, response = np.split(places, [row["prompt_tokens"]])
        mask = self.trained_by[response] == place
        lists = {
            "prompt_ids": self.ids[prompt].tolist(),
            "response_ids": self.ids[response].tolist(),
            "response_mask": mask.astype(np.int64).tolist(),
            "response_logprobs": np.where(mask, self.logprobs[response], 0.0).tolist(),
        }
        rest = {name: value for name, value in row.items() if name not in _OF_A_FOREST}
        return parse_row(row["session_id"], {**rest, **lists})


@dataclass(frozen=True)
class TokenForest:
    """The response of ``GET /forest``, or ``GET /sessions/{id}/forest``."""

    #: Nodes; each follows its parent. With ``turn_id``: one completion.
    nodes: Sequence[Mapping[str, Any]] = field(repr=False)
    rows: Sequence[Mapping[str, Any]] = field(repr=False)
    sessions: Sequence[Mapping[str, Any]] = field(repr=False)

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> TokenForest:
        """Creates a forest from the proxy's JSON."""
        return cls(answer["nodes"], answer["rows"], answer["sessions"])

    def pack(self, max_tokens: int | None = None) -> list[PackedForest]:
        """Packs all rows; rows that share the longest prefixes are adjacent.

        :param max_tokens: limit of a sequence; a prefix that rows of two sequences share is in both, and is trained in
            one. Default: one sequence contains all
        :returns: sequences; rows without tokens are in none
        :raises ValueError: a row alone exceeds the limit
        """
        paths = {place: self._path(row) for place, row in enumerate(self.rows) if row["leaf"] is not None}
        packs: list[list[int]] = []
        nodes: set[int] = set()
        length = 0
        for place in self._depth_first(paths):
            new = [node for node in paths[place] if node not in nodes]
            added = sum(len(self.nodes[node]["ids"]) for node in new)
            if not packs or (max_tokens is not None and length + added > max_tokens):
                packs.append([])
                nodes, length = set(), 0
                new = paths[place]
                added = sum(len(self.nodes[node]["ids"]) for node in new)
            if max_tokens is not None and added > max_tokens:
                raise ValueError(f"row {place} has {added} tokens, more than {max_tokens}")
            packs[-1].append(place)
            nodes.update(new)
            length += added
        return [self._packed(places, paths) for places in packs]

    def _path(self, row: Mapping[str, Any]) -> list[int]:
        """Returns the nodes of a row, from the root to the leaf."""
        path: list[int] = []
        at = row["leaf"]
        while at is not None:
            path.append(at)
            at = self.nodes[at]["parent"]
        return path[::-1]

    def _depth_first(self, paths: Mapping[int, list[int]]) -> Iterator[int]:
        """Yields rows in depth-first order: paths with a common prefix are adjacent, each node before its
        continuations.
        """
        return iter(sorted(paths, key=paths.__getitem__))

    def _packed(self, places: Sequence[int], paths: Mapping[int, Sequence[int]]) -> PackedForest:
        import numpy as np

        starts, end, before, positions = self._place_nodes([paths[place] for place in places])
        count = len(before)
        ids = np.empty(count, np.int64)
        for node, start in starts.items():
            ids[start : start + len(self.nodes[node]["ids"])] = self.nodes[node]["ids"]
        trained_by = np.full(count, -1, np.int64)
        logprobs = np.zeros(count)
        rewards = np.full(count, np.nan)
        tokens = []
        for number, place in enumerate(places):
            row, path = self.rows[place], paths[place]
            tokens.append(
                np.concatenate([np.arange(len(self.nodes[node]["ids"])) + starts[node] for node in path])
            )
            trained = {turn["turn_id"] for turn in row["turns"] if turn["trained"]}
            for node in path:
                if self.nodes[node].get("turn_id") not in trained:
                    continue
                span = slice(starts[node], starts[node] + len(self.nodes[node]["ids"]))
                trained_by[span] = number
                logprobs[span] = self.nodes[node]["logprobs"]
                rewards[span] = np.nan if row["reward"] is None else row["reward"]
        rows = [self.rows[place] for place in places]
        return PackedForest(ids, positions, end, before, trained_by, logprobs, rewards, tokens, rows)

    def _place_nodes(
        self, paths: Sequence[Sequence[int]]
    ) -> tuple[dict[int, int], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns the start of each node, and for each token its end, the preceding token and its position."""
        import numpy as np

        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        before: list[NDArray[np.int64]] = []
        positions: list[NDArray[np.int64]] = []
        count = 0
        for path in paths:
            last, depth = -1, 0
            for node in path:
                length = len(self.nodes[node]["ids"])
                if node not in starts:
                    starts[node] = count
                    places = np.arange(count - 1, count - 1 + length)
                    places[:1] = last
                    before.append(places)
                    positions.append(np.arange(depth, depth + length))
                    count += length
                if length > 0:
                    last = starts[node] + length - 1
                depth += length
            for node in path:
                ends[node] = count
        end = np.empty(count, np.int64)
        for node, start in starts.items():
            end[start : start + len(self.nodes[node]["ids"])] = ends[node]
        return starts, end, _joined(before), _joined(positions)


def _joined(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    import numpy as np

    return np.concatenate(parts) if parts else np.empty(0, np.int64)
