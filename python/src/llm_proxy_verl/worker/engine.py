"""The port of a worker's engine."""

from __future__ import annotations

from typing import Protocol

from .frames import Completion, CompletionRequest


class Engine(Protocol):
    """Samples completions."""

    @property
    def weight_version(self) -> str | None:
        """The weight version of its latest completion; ``None`` while it has not reported any."""

    def text_ids(self, text: str) -> list[int] | None:
        """Returns the text's ids according to its tokenizer, without a leading special token; ``None`` if unknown."""

    async def generate(self, request: CompletionRequest) -> Completion:
        """Samples one completion.

        Cancelling the task stops waiting for it.

        :raises CallError: the error for the agent
        """
