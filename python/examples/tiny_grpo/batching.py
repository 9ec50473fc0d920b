"""Continuous batching: requests join when they come and leave when they are done; one step is one token each."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import torch

from . import model
from .text import END_OF_TURN, PADDING

#: Sequences that are sampled at once; more wait.
SEATS = 64


@dataclasses.dataclass
class Sampled:
    """One token, its log-probability, and what ended the answer."""

    token: int
    logprob: float
    finish_reason: str | None


@dataclasses.dataclass
class Request:
    """A prompt and how to go on from it."""

    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    out: asyncio.Queue[Sampled | None]
    gone: bool = False
    count: int = 0


def nucleus(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """True for the most probable tokens that together reach ``top_p``, as vLLM and SGLang keep them."""
    probabilities, order = logits.softmax(-1).sort(descending=True, dim=-1)
    before = probabilities.cumsum(-1) - probabilities
    return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before < top_p)


class Batch:
    """The model and who is in it. All of it runs on the event loop: a step is a few milliseconds."""

    def __init__(self, policy: model.Policy, weight_version: str) -> None:
        self.weight_version = weight_version
        self._policy = policy
        self._seats: list[Request] = []
        self._cache = model.Cache(policy.shape, SEATS)
        self._at = torch.zeros(SEATS, dtype=torch.long)
        self._last = torch.zeros(SEATS, model.REACH, dtype=torch.long)
        self._waiting: list[Request] = []
        self._wake = asyncio.Event()

    @property
    def context(self) -> int:
        """The longest sequence that there can be."""
        return self._policy.shape.context

    def take(self, policy: model.Policy, weight_version: str) -> None:
        """Samples with other weights from now on. Whoever calls this has let running requests end."""
        self._policy, self.weight_version = policy, weight_version

    async def generate(
        self, prompt: list[int], max_tokens: int, temperature: float, top_p: float
    ) -> AsyncIterator[Sampled]:
        """The tokens of one answer as they are sampled."""
        request = Request(prompt, max_tokens, temperature, top_p, asyncio.Queue())
        self._waiting.append(request)
        self._wake.set()
        try:
            while (sampled := await request.out.get()) is not None:
                yield sampled
                if sampled.finish_reason is not None:
                    return
        finally:
            request.gone = True

    async def run(self) -> None:
        """Samples for as long as the engine lives."""
        with torch.inference_mode():
            while True:
                self._leave()
                if not self._seats and not self._waiting:
                    self._wake.clear()
                    await self._wake.wait()
                if self._waiting and len(self._seats) < SEATS:
                    self._join()
                elif self._seats:
                    rows = torch.arange(len(self._seats))
                    logits = self._policy.step(self._last[rows], self._cache, rows, self._at[rows])
                    self._sample(logits, rows)
                await asyncio.sleep(0)

    def _join(self) -> None:
        free = SEATS - len(self._seats)
        new, self._waiting = self._waiting[:free], self._waiting[free:]
        rows = torch.arange(len(self._seats), len(self._seats) + len(new))
        self._seats.extend(new)
        lengths = torch.tensor([len(request.prompt) for request in new])
        ids = torch.full((len(new), int(lengths.max())), PADDING)
        for row, request in zip(ids, new, strict=True):
            row[: len(request.prompt)] = torch.tensor(request.prompt)
        for row, request in zip(rows, new, strict=True):
            self._last[row] = torch.tensor(request.prompt[-model.REACH :])
        self._at[rows] = lengths - 1
        self._sample(self._policy.prefill(ids, lengths, self._cache, rows), rows)

    def _sample(self, logits: torch.Tensor, rows: torch.Tensor) -> None:
        requests = [self._seats[row] for row in rows]
        scaled = logits / torch.tensor([max(request.temperature, 1e-4) for request in requests])[:, None]
        for row, request in enumerate(requests):
            if request.top_p < 1:
                scaled[row] = scaled[row].masked_fill(~nucleus(scaled[row], request.top_p), -torch.inf)
        # Of what was sampled from, as vLLM tells it with --logprobs-mode processed_logprobs.
        logprobs = scaled.log_softmax(-1)
        tokens = scaled.softmax(-1).multinomial(1).squeeze(-1)
        self._at[rows] += 1
        self._last[rows] = torch.cat([self._last[rows, 1:], tokens[:, None]], dim=1)
        taken = logprobs.gather(-1, tokens[:, None]).squeeze(-1).tolist()
        for request, token, logprob in zip(requests, tokens.tolist(), taken, strict=True):
            request.count += 1
            is_full = (
                request.count >= request.max_tokens or len(request.prompt) + request.count >= self.context
            )
            reason = "stop" if token == END_OF_TURN else "length" if is_full else None
            request.out.put_nowait(Sampled(token, logprob, reason))
            request.gone = request.gone or reason is not None

    def _leave(self) -> None:
        """Empties the seats of those that are done; the last one moves up, so that the batch has no holes."""
        for row in reversed(range(len(self._seats))):
            if self._seats[row].gone:
                last = len(self._seats) - 1
                for part in (self._cache.kept.movedim(2, 0), self._at, self._last):
                    part[row] = part[last]
                self._seats[row] = self._seats[last]
                self._seats.pop()
