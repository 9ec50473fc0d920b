"""GRPO on rows of llm-proxy: group advantages, a clipped ratio, and masks of the sampled tokens."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import model, tasks
from .batching import nucleus
from .pretrain import to_batch
from .rollouts import Rollouts, change_weights
from .system import System

#: A row of `llm-proxy rollout`, docs/rollouts.md.
Line = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The parameters of a run."""

    steps: int = 24
    #: Tasks of a step, and samples of each: a group, whose mean reward is the baseline.
    tasks: int = 8
    samples: int = 8
    rate: float = 1e-3
    clip: float = 0.2
    #: Optimizer steps for each batch of rollouts.
    minibatches: int = 2
    #: Each time after this many steps, rollouts begin before the weights change, so that rows straddle the update.
    overlap_every: int = 5
    top_p: float = 1.0
    #: With ``top_p``: normalise over the tokens that could have been sampled.
    sampling_mask: bool = False
    #: The type of the engine's weights. The trainer's own are float32.
    engine_dtype: str = "float32"


@dataclasses.dataclass
class Row:
    """A training sequence; the mask and the recorded logprobs have its length."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    advantage: float
    #: The weight versions that sampled it, the first and the last.
    versions: tuple[str, str]


class Trainer:
    """Trains a policy on a running system.

    :param to_rows: converts the lines of a sample to rows; the experiment passes other conversions
    """

    def __init__(
        self,
        system: System,
        policy: model.Policy,
        settings: Settings,
        seed: int,
        draw: Callable[[random.Random], tasks.Task] = tasks.draw_task,
        to_rows: Callable[[System, list[Line], float], list[Row]] | None = None,
    ) -> None:
        self.system, self.policy, self.settings = system, policy, settings
        self._dice, self._draw = random.Random(seed), draw
        self._to_rows = to_rows or proxy_rows
        self._optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.rate, weight_decay=0.0)

    def run(self) -> Iterator[dict[str, float]]:
        """Yields the figures of each step. No agent runs after the last one."""
        settings = self.settings
        rollouts = self._start(0)
        for step in range(settings.steps):
            lines, seconds = rollouts.finish()
            has_next = step + 1 < settings.steps
            overlaps = has_next and (step + 1) % settings.overlap_every == 0
            if overlaps:
                rollouts = self._start(step + 1)
            figures = self._learn(lines, version=str(step))
            if overlaps:
                rollouts.wait_until_half_way()
            change_weights(self.system, self.policy, str(step + 1))
            if has_next and not overlaps:
                rollouts = self._start(step + 1)
            yield {
                "step": step,
                "seconds": seconds,
                "tokens_per_second": figures["tokens"] / seconds,
            } | figures

    def _start(self, step: int) -> Rollouts:
        drawn = [self._draw(self._dice) for _ in range(self.settings.tasks)]
        sampling = {"temperature": 1.0, "top_p": self.settings.top_p}
        return Rollouts(self.system, step, drawn, self.settings.samples, sampling)

    def _learn(self, lines: list[Line], version: str) -> dict[str, float]:
        rewards, rows = self._with_advantages(lines)
        self._sampler = copy.deepcopy(self.policy)
        figures = {
            "reward": sum(rewards) / max(len(rewards), 1),
            "rows": len(rows),
            "tokens": sum(sum(r.mask) for r in rows),
        }
        figures["exact_rows"] = sum(not line["metrics"]["inexact_turns"] for line in lines) / len(lines)
        figures["logprob_error"] = self._logprob_error(
            [row for row in rows if row.versions == (version, version)]
        )
        with torch.no_grad():
            ratios = self._ratios(rows).split([sum(row.mask) for row in rows])
        kinds = {"fresh": (version, version), "straddling": (str(int(version) - 1), version)}
        for kind, versions in kinds.items():
            those = [ratio for ratio, row in zip(ratios, rows, strict=True) if row.versions == versions]
            joined = torch.cat(those) if those else torch.ones(1)
            figures[f"{kind}_rows"] = len(those)
            figures[f"ratio_error_{kind}"] = float((joined - 1).abs().max())
            figures[f"ratio_mean_{kind}"] = float(joined.mean())
        self._dice.shuffle(rows)
        parts = [rows[start :: self.settings.minibatches] for start in range(self.settings.minibatches)]
        return figures | {"clip_share": sum(self._update(part) for part in parts) / len(parts)}

    def _with_advantages(self, lines: list[Line]) -> tuple[list[float], list[Row]]:
        """Returns the rewards of samples that have one, and their rows with the sample's advantage in its group."""
        samples, groups = defaultdict(list), defaultdict(dict)
        for line in lines:
            task, sample = line["task_index"], line["sample_index"]
            samples[task, sample].append(line)
            if line["reward_score"] is not None:
                groups[task][sample] = float(line["reward_score"])
        rows = []
        for (task, sample), parts in samples.items():
            if sample not in groups[task]:
                continue
            rewards = torch.tensor(list(groups[task].values()))
            advantage = (groups[task][sample] - rewards.mean()) / (rewards.std(correction=0) + 1e-4)
            rows += self._to_rows(self.system, parts, float(advantage))
        return [reward for group in groups.values() for reward in group.values()], rows

    def _ratios(self, rows: list[Row]) -> torch.Tensor:
        """Returns the ratio of each sampled token's probability to the recorded one: 1 before the first update."""
        batch = to_batch([(row.ids, row.mask) for row in rows], self.policy.device)
        logprobs, logits = self.policy.logprobs(*batch)
        sampled = sampled_logprobs(rows).to(self.policy.device)
        if self.settings.sampling_mask:
            left_out = ~nucleus(self._before(batch)[1], self.settings.top_p)
            logprobs = (
                logprobs - logits.masked_fill(left_out, -torch.inf).logsumexp(-1) + logits.logsumexp(-1)
            )
        # Only the experiment has tokens without a recorded logprob: that of the step's first weights replaces it.
        if sampled.isnan().any():
            sampled = torch.where(sampled.isnan(), self._before(batch)[0], sampled)
        return (logprobs - sampled).exp()

    @torch.no_grad()
    def _logprob_error(self, rows: list[Row]) -> float:
        """Returns the largest difference of recorded logprobs from those that weights of the engine's type give."""
        if not rows:
            return 0.0
        engine = copy.deepcopy(self.policy).to(getattr(torch, self.settings.engine_dtype))
        batch = to_batch([(row.ids, row.mask) for row in rows], self.policy.device)
        difference = engine.logprobs(*batch)[0] - sampled_logprobs(rows).to(self.policy.device)
        return float(difference.nan_to_num().abs().max())

    @torch.no_grad()
    def _before(self, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the logprobs and logits of the weights with which the step began."""
        return self._sampler.logprobs(*batch)

    def _update(self, rows: list[Row]) -> float:
        """Makes one optimizer step on the clipped surrogate, tokens weighted equally; returns the clipped share."""
        ratio = self._ratios(rows)
        advantages = sampled_advantages(rows).to(ratio.device)
        bounded = ratio.clamp(1 - self.settings.clip, 1 + self.settings.clip)
        loss = -torch.min(ratio * advantages, bounded * advantages).mean()
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self._optimizer.step()
        return float((bounded != ratio).float().mean())


def proxy_rows(_: System, lines: list[Line], advantage: float) -> list[Row]:
    """Returns the rows of the proxy: the sampled tokens after the prompt of the engine."""
    return [
        Row(
            ids=line["prompt_ids"] + line["response_ids"],
            mask=[0] * len(line["prompt_ids"]) + line["response_mask"],
            logprobs=[0.0] * len(line["prompt_ids"]) + line["response_logprobs"],
            advantage=advantage,
            versions=(line["extra_fields"]["weight_version_min"], line["extra_fields"]["weight_version_max"]),
        )
        for line in lines
        if not line["metrics"]["padding"]
    ]


def sampled_logprobs(rows: list[Row]) -> torch.Tensor:
    """Returns the recorded logprobs of all sampled tokens, row after row."""
    return torch.tensor([p for row in rows for p, bit in zip(row.logprobs, row.mask, strict=True) if bit])


def sampled_advantages(rows: list[Row]) -> torch.Tensor:
    """Returns the advantages of all sampled tokens, row after row."""
    return torch.cat([torch.full((sum(row.mask),), row.advantage) for row in rows])
