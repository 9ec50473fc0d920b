"""The engine's own log of its completions, compared with the rows that the proxy recorded."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from .trainer import Row

#: A prompt's ids, and the ids and logprobs that were sampled after it.
Completion = tuple[list[int], list[int], list[float]]


class EngineLog:
    """Completions by prompt and sampled ids. Equal ones may differ in logprobs, which depend on the batch."""

    def __init__(self, path: Path) -> None:
        self._logprobs: dict[tuple[int, ...], list[list[float]]] = defaultdict(list)
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            self._logprobs[_key(entry["prompt"], entry["ids"])].append(entry["logprobs"])

    def unknown(self, rows: list[Row]) -> int:
        """Returns how many completions of rows the engine did not sample with exactly these logprobs."""
        return sum(
            logprobs not in self._logprobs[_key(prompt, ids)]
            for row in rows
            for prompt, ids, logprobs in completions(row)
        )


def _key(prompt: list[int], ids: list[int]) -> tuple[int, ...]:
    return (len(prompt), *prompt, *ids)


def completions(row: Row) -> Iterator[Completion]:
    """Yields the completions of a row: the runs of its mask."""
    start = 0
    while 1 in row.mask[start:]:
        begin = row.mask.index(1, start)
        start = row.mask.index(0, begin) if 0 in row.mask[begin:] else len(row.mask)
        yield row.ids[:begin], row.ids[begin:start], row.logprobs[begin:start]
