"""Continuous batching: a request joins when it arrives and leaves when it ends; a step samples one token for each."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import torch
from torch import Tensor
from torch.nn import functional

from . import model
from .text import END_OF_TURN, PADDING

#: Sequences that are sampled at once; further requests wait.
SEATS = 64


@dataclasses.dataclass
class Sampled:
    """A token, its log-probability, and the reason why the response ended, if it did."""

    token: int
    logprob: float
    finish_reason: str | None


@dataclasses.dataclass
class Request:
    """A prompt with its sampling parameters."""

    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    ignore_eos: bool
    out: asyncio.Queue[Sampled]
    is_done: bool = False
    count: int = 0


def nucleus(logits: Tensor, top_p: float | Tensor) -> Tensor:
    """Returns a mask of the most probable tokens that together reach ``top_p``, as vLLM and SGLang keep them.

    :param top_p: one value, or a column with one for each row
    """
    probabilities, order = logits.softmax(-1).sort(descending=True, dim=-1)
    before = probabilities.cumsum(-1) - probabilities
    return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before < top_p)


class Batch:
    """The model and its running requests. It runs on the event loop, because a step takes a few milliseconds."""

    def __init__(self, policy: model.Policy, weight_version: str) -> None:
        self.weight_version = weight_version
        self._policy = policy
        self._seats: list[Request] = []
        self._cache = model.Cache(policy, SEATS)
        self._positions = torch.zeros(SEATS, dtype=torch.long, device=policy.device)
        self._last = torch.zeros(SEATS, model.REACH, dtype=torch.long, device=policy.device)
        self._waiting: list[Request] = []
        self._wake = asyncio.Event()

    @property
    def context(self) -> int:
        """The longest sequence, in tokens."""
        return self._policy.shape.context

    def replace_weights(self, policy: model.Policy, weight_version: str) -> None:
        """Samples with other weights from now on. The caller has waited until no request runs."""
        self._policy, self.weight_version = policy, weight_version

    async def generate(
        self, prompt: list[int], max_tokens: int, temperature: float, top_p: float, ignore_eos: bool
    ) -> AsyncIterator[list[Sampled]]:
        """Yields the tokens of a response: those that were sampled since the last time, as vLLM merges them."""
        request = Request(prompt, max_tokens, temperature, top_p, ignore_eos, asyncio.Queue())
        self._waiting.append(request)
        self._wake.set()
        try:
            while True:
                tokens = [await request.out.get()]
                while not request.out.empty():
                    tokens.append(request.out.get_nowait())
                yield tokens
                if tokens[-1].finish_reason is not None:
                    return
        finally:
            request.is_done = True

    async def run(self) -> None:
        """Samples until it is cancelled."""
        with torch.inference_mode():
            while True:
                self._leave()
                if not self._seats and not self._waiting:
                    self._wake.clear()
                    await self._wake.wait()
                if self._waiting and len(self._seats) < SEATS:
                    self._join()
                elif self._seats:
                    rows = torch.arange(len(self._seats), device=self._policy.device)
                    logits = self._policy.step(self._last[rows], self._cache, rows, self._positions[rows])
                    self._sample(logits, rows, self._seats)
                await asyncio.sleep(0)

    def _join(self) -> None:
        free, device = SEATS - len(self._seats), self._policy.device
        new, self._waiting = self._waiting[:free], self._waiting[free:]
        rows = torch.arange(len(self._seats), len(self._seats) + len(new), device=device)
        self._seats.extend(new)
        lengths = torch.tensor([len(request.prompt) for request in new])
        ids = torch.full((len(new), int(lengths.max())), PADDING)
        for row, request in zip(ids, new, strict=True):
            row[: len(request.prompt)] = torch.tensor(request.prompt)
        padded = functional.pad(ids, (model.REACH - 1, 0), value=PADDING)
        self._last[rows] = padded.gather(1, lengths[:, None] + torch.arange(-1, model.REACH - 1)).to(device)
        ids, lengths = ids.to(device), lengths.to(device)
        self._positions[rows] = lengths - 1
        self._sample(self._policy.prefill(ids, lengths, self._cache, rows), rows, new)

    def _sample(self, logits: Tensor, rows: Tensor, requests: list[Request]) -> None:
        temperatures = torch.tensor([max(request.temperature, 1e-4) for request in requests])
        scaled = logits / temperatures.to(logits.device)[:, None]
        if any(request.top_p < 1 for request in requests):
            # A top_p of 1 excludes nothing; rounding could exclude the least probable token.
            top_p = torch.tensor([request.top_p if request.top_p < 1 else 2.0 for request in requests])
            scaled = scaled.masked_fill(~nucleus(scaled, top_p.to(logits.device)[:, None]), -torch.inf)
        # The distribution that is sampled from, as vLLM reports it with --logprobs-mode processed_logprobs.
        logprobs = scaled.log_softmax(-1)
        tokens = scaled.softmax(-1).multinomial(1).squeeze(-1)
        self._positions[rows] += 1
        self._last[rows] = torch.cat([self._last[rows, 1:], tokens[:, None]], dim=1)
        taken = logprobs.gather(-1, tokens[:, None]).squeeze(-1).tolist()
        for request, token, logprob in zip(requests, tokens.tolist(), taken, strict=True):
            request.count += 1
            is_full = (
                request.count >= request.max_tokens or len(request.prompt) + request.count >= self.context
            )
            is_end = token == END_OF_TURN and not request.ignore_eos
            reason = "stop" if is_end else "length" if is_full else None
            request.out.put_nowait(Sampled(token, logprob, reason))
            request.is_done = request.is_done or reason is not None

    def _leave(self) -> None:
        """Removes requests that are done. The last one takes a free seat, so that the batch has no holes."""
        for row in reversed(range(len(self._seats))):
            if self._seats[row].is_done:
                last = len(self._seats) - 1
                for part in (self._cache.states.movedim(2, 0), self._positions, self._last):
                    part[row] = part[last]
                self._seats[row] = self._seats[last]
                self._seats.pop()
