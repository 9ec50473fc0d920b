"""The engine port of a worker."""

from __future__ import annotations

from typing import Protocol

from .frames import Completion, CompletionRequest


class Engine(Protocol):
    """An engine that samples completions."""

    @property
    def weight_version(self) -> str | None:
        """The weight version of the latest completion; ``None`` before the engine has reported one."""

    def text_ids(self, text: str) -> list[int] | None:
        """Returns the ids of a text without special tokens; ``None`` if the engine cannot tokenize."""

    async def generate(self, request: CompletionRequest) -> Completion:
        """Samples one completion. The worker cancels the task if the completion is no longer needed.

        :raises CallError: with the error for the agent
        """
