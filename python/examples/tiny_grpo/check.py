"""Checks within a minute that training through the proxy works; CI runs it.

A small policy that solves one task half of the time is trained on that task through the proxy. The recorded
log-probabilities must equal the engine's to the bit and the recomputed ones closely, the first update must make better
responses more probable than worse ones, and the reward must rise.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from . import model, pretrain, show, system, tasks, trainer
from .drift import retokenized_rows
from .engine_log import EngineLog
from .trainer import Row, Trainer

TASK = tasks.Task("What is 7 + 5?", [("7 + 5", "12")])
SETTINGS = trainer.Settings(steps=9, tasks=1, samples=48, overlap_every=4)
#: The recorded logprobs went through JSON, and the engine computes one token at a time with a cache.
RATIO_ERROR = 1e-3


def run(out: Path) -> int:
    """Prints the findings; returns 0 if each one holds."""
    torch.manual_seed(0)
    weights = out / "check.pt"
    model.save(pretrain.imitate(0, 80, lambda _: TASK, every=20), weights)
    policy = model.load(weights)
    first: list[Row] = []
    same_ids: list[bool] = []
    every: list[Row] = []

    def keep_rows(where: system.System, lines: list[dict[str, Any]], advantage: float) -> list[Row]:
        rows = trainer.proxy_rows(where, lines, advantage)
        every.extend(rows)
        if lines[0]["extra_fields"]["weight_version_max"] == "0":
            first.extend(rows)
            same_ids.append(
                [row.ids for row in retokenized_rows(where, lines, advantage)] == [row.ids for row in rows]
            )
        return rows

    print(show.header(), flush=True)
    with system.running(out / "check", weights, context=policy.shape.context, log_engine=True) as where:
        training = Trainer(where, policy, SETTINGS, 0, draw=lambda _: TASK, to_rows=keep_rows).run()
        steps = [next(training)]
        print(show.line(steps[0]), flush=True)
        gain = _gain(policy, first)
        for step in training:
            steps.append(step)
            print(show.line(step), flush=True)
        unknown = EngineLog(where.engine_log).unknown(every)
    error = max(step["ratio_error_fresh"] for step in steps)
    early, late = steps[0]["reward"], sum(step["reward"] for step in steps[-3:]) / 3
    straddling = sum(step["straddling_rows"] for step in steps)
    findings = {
        f"each recomputed logprob is the recorded one (largest |ratio - 1| {error:.1e})": error < RATIO_ERROR,
        f"each recorded logprob equals the engine's to the bit ({len(every)} rows)": unknown == 0,
        f"every row is exact ({len(steps)} steps)": all(step["exact_rows"] == 1 for step in steps),
        f"the example renders as the proxy does ({sum(same_ids)} of {len(first)} rows have its ids)": any(
            same_ids
        ),
        f"an update makes the better responses more probable, the worse ones less ({gain:+.4f})": gain > 0,
        f"the reward of a task that is practised rises ({early:.2f} to {late:.2f})": late > early,
    }
    print(f"{straddling:.0f} rows straddled an update, and report both weight versions")
    for finding, holds in findings.items():
        print(f"{'ok' if holds else 'FAILED'}: {finding}", file=sys.stdout if holds else sys.stderr)
    return 0 if all(findings.values()) else 1


def _gain(policy: model.Policy, rows: list[Row]) -> float:
    """Returns the mean of advantage times change of logprob over the sampled tokens."""
    with torch.no_grad():
        after = policy.logprobs(*pretrain.to_batch([(row.ids, row.mask) for row in rows], policy.device))[0]
    return float((trainer.sampled_advantages(rows) * (after - trainer.sampled_logprobs(rows))).mean())
