"""The port behind which a worker's engine stands."""

from __future__ import annotations

from typing import Protocol

from .frames import Completion, CompletionRequest


class Engine(Protocol):
    """Samples completions."""

    @property
    def weight_version(self) -> str | None:
        """Which weights it sampled with last, in its own word; ``None`` while it has not told."""

    def text_ids(self, text: str) -> list[int] | None:
        """The text's ids by its tokenizer, without a token that begins it; ``None`` if it cannot tell."""

    async def generate(self, request: CompletionRequest) -> Completion:
        """Samples one completion. Cancelling the call stops the wait for it.

        :raises CallError: with what the agent should get
        """
