"""Rows with each token once, packed for tree attention (docs/your-trainer.md).

A forest is packed in depth-first order: the tokens that continue a token, in any row, are adjacent, from the token to
its ``end``. A token therefore attends exactly to the tokens of its own rows if ``key <= query < end[key]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .rows import Row, parse_row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FOREST_FIELDS = ("session_id", "leaf", "prompt_tokens", "response_tokens")


@dataclass(frozen=True)
class PackedForest:
    """Rows as one sequence of ``T`` tokens. All arrays except ``tokens`` and ``rows`` have length ``T``."""

    #: int64: token ids.
    ids: NDArray[np.int64]
    #: int64: the position of each token in its rows, from 0, for rotary embeddings.
    positions: NDArray[np.int64]
    #: int64: the exclusive end of the tokens that attend to this one. ``(key <= query) & (query < end[key])`` is the
    #: mask.
    end: NDArray[np.int64]
    #: int64: the index of the token whose logits predict this one; -1 for the first token of a row.
    before: NDArray[np.int64]
    #: int64: the index in ``rows`` of the row that trains the token; -1 if none does, and the loss mask is 0.
    trained_by: NDArray[np.int64]
    #: float64: natural logarithms, as the engine reported them; 0.0 where no row trains the token.
    logprobs: NDArray[np.float64]
    #: float64: the reward of the row that trains the token; NaN without a reward.
    rewards: NDArray[np.float64]
    #: For each row, int64: the indices in ``ids`` of its tokens, prompt and response.
    tokens: Sequence[NDArray[np.int64]]
    #: The fields of each row, as the proxy returns them.
    rows: Sequence[Mapping[str, Any]] = field(repr=False)

    @property
    def loss_mask(self) -> NDArray[np.bool_]:
        """bool: whether each token is trained."""
        mask: NDArray[np.bool_] = self.trained_by >= 0
        return mask

    def attention_mask(self) -> NDArray[np.bool_]:
        """bool, ``(T, T)``: whether token ``i`` attends to token ``j``. Its size limits it to short sequences."""
        import numpy as np

        indices = np.arange(len(self.ids))
        mask: NDArray[np.bool_] = (indices <= indices[:, None]) & (indices[:, None] < self.end)
        return mask

    def of_rows(self, numbers: Sequence[float] | NDArray[Any]) -> list[NDArray[Any]]:
        """Splits numbers per token of the sequence into numbers per response token of each row."""
        import numpy as np

        values = np.asarray(numbers)
        return [
            values[indices[row["prompt_tokens"] :]]
            for indices, row in zip(self.tokens, self.rows, strict=True)
        ]

    def unpack(self) -> list[Row]:
        """Returns the original rows."""
        return [self._build_row(index) for index in range(len(self.rows))]

    def _build_row(self, index: int) -> Row:
        import numpy as np

        row, indices = self.rows[index], self.tokens[index]
        prompt, response = np.split(indices, [row["prompt_tokens"]])
        mask = self.trained_by[response] == index
        lists = {
            "prompt_ids": self.ids[prompt].tolist(),
            "response_ids": self.ids[response].tolist(),
            "response_mask": mask.astype(np.int64).tolist(),
            "response_logprobs": np.where(mask, self.logprobs[response], 0.0).tolist(),
        }
        rest = {name: value for name, value in row.items() if name not in _FOREST_FIELDS}
        return parse_row(row["session_id"], {**rest, **lists})


@dataclass(frozen=True)
class TokenForest:
    """The response of ``GET /forest``, or ``GET /sessions/{id}/forest``."""

    #: Nodes, each after its parent; a node with ``turn_id`` is a completion.
    nodes: Sequence[Mapping[str, Any]] = field(repr=False)
    rows: Sequence[Mapping[str, Any]] = field(repr=False)
    sessions: Sequence[Mapping[str, Any]] = field(repr=False)

    @classmethod
    def of(cls, response: Mapping[str, Any]) -> TokenForest:
        """Creates a forest from the proxy's JSON."""
        return cls(response["nodes"], response["rows"], response["sessions"])

    def pack(self, max_tokens: int | None = None) -> list[PackedForest]:
        """Packs all rows; rows that share the longest prefixes are adjacent.

        :param max_tokens: limit of a sequence; a prefix that rows of two sequences share is in both, but is trained in
            one only. Default: one sequence contains all rows
        :returns: sequences, without rows that have no tokens
        :raises ValueError: if a single row exceeds the limit
        """
        paths = {index: self._get_path(row) for index, row in enumerate(self.rows) if row["leaf"] is not None}
        packs: list[list[int]] = []
        nodes: set[int] = set()
        length = 0
        for index in self._sort_depth_first(paths):
            new = [node for node in paths[index] if node not in nodes]
            added = sum(len(self.nodes[node]["ids"]) for node in new)
            if not packs or (max_tokens is not None and length + added > max_tokens):
                packs.append([])
                nodes, length = set(), 0
                new = paths[index]
                added = sum(len(self.nodes[node]["ids"]) for node in new)
            if max_tokens is not None and added > max_tokens:
                raise ValueError(f"row {index} has {added} tokens, more than {max_tokens}")
            packs[-1].append(index)
            nodes.update(new)
            length += added
        return [self._pack_rows(indices, paths) for indices in packs]

    def _get_path(self, row: Mapping[str, Any]) -> list[int]:
        """Returns the nodes of a row, from the root to the leaf."""
        path: list[int] = []
        node = row["leaf"]
        while node is not None:
            path.append(node)
            node = self.nodes[node]["parent"]
        return path[::-1]

    def _sort_depth_first(self, paths: Mapping[int, list[int]]) -> Iterator[int]:
        """Yields the indices of rows so that paths with a common prefix are adjacent."""
        return iter(sorted(paths, key=paths.__getitem__))

    def _pack_rows(self, indices: Sequence[int], paths: Mapping[int, Sequence[int]]) -> PackedForest:
        import numpy as np

        starts, end, before, positions = self._lay_out_nodes([paths[index] for index in indices])
        count = len(before)
        ids = np.empty(count, np.int64)
        for node, start in starts.items():
            ids[start : start + len(self.nodes[node]["ids"])] = self.nodes[node]["ids"]
        trained_by = np.full(count, -1, np.int64)
        logprobs = np.zeros(count)
        rewards = np.full(count, np.nan)
        tokens = []
        for number, index in enumerate(indices):
            row, path = self.rows[index], paths[index]
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
        rows = [self.rows[index] for index in indices]
        return PackedForest(ids, positions, end, before, trained_by, logprobs, rewards, tokens, rows)

    def _lay_out_nodes(
        self, paths: Sequence[Sequence[int]]
    ) -> tuple[dict[int, int], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns the start of each node, and for each token its end, the token before it, and its position."""
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
                    indices = np.arange(count - 1, count - 1 + length)
                    indices[:1] = last
                    before.append(indices)
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
        return starts, end, _concatenate(before), _concatenate(positions)


def _concatenate(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    import numpy as np

    return np.concatenate(parts) if parts else np.empty(0, np.int64)
