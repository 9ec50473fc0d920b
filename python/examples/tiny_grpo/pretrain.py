"""The policy that training begins with: it has imitated a teacher for half a minute, once for each set of sources."""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

from . import dialogues, model, tasks, text

STEPS, BATCH, RATE = 300, 16, 4e-3
#: The share of steps whose teacher makes no mistake: a policy learns to copy faster from examples without mistakes.
CAREFULLY = 0.7


def pretrained(
    cache: Path,
    seed: int,
    steps: int = STEPS,
    shape: model.Shape = model.SIZES["tiny"],
    device: str = "cpu",
) -> Path:
    """Returns the file of a pre-trained policy, and trains it unless a file with the same sources exists."""
    sources = b"".join(Path(part.__file__).read_bytes() for part in (dialogues, model, tasks, text))
    parameters = f"{seed} {steps} {shape}"
    made_of = sources + Path(__file__).read_bytes() + text.TEMPLATE.encode() + parameters.encode()
    path = cache / f"pretrained-{hashlib.sha256(made_of).hexdigest()[:16]}.pt"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        model.save(imitate(seed, steps, shape=shape, device=device), path)
    return path


def imitate(
    seed: int,
    steps: int,
    draw: Callable[[random.Random], tasks.Task] = tasks.draw_task,
    *,
    every: int = 50,
    shape: model.Shape = model.SIZES["tiny"],
    device: str = "cpu",
) -> model.Policy:
    """Returns a new policy that has imitated the teacher on tasks of ``draw``.

    :param every: the number of steps between two lines of progress
    """
    torch.manual_seed(seed)
    dice = random.Random(seed)
    policy = model.Policy(shape).to(device)
    size = sum(weight.numel() for weight in policy.parameters())
    # The rate of the smallest size; a wider model needs a lower one (µP, arXiv:2203.03466).
    rate = RATE * model.SIZES["tiny"].width / shape.width
    optimizer = torch.optim.AdamW(policy.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    warm_up = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, max(0.02, 1 - step / steps))
    )
    started = time.monotonic()
    for step in range(steps):
        careful = step < CAREFULLY * steps
        rows = [dialogues.draw_dialogue(dice, draw, careful=careful) for _ in range(BATCH)]
        ids, where = to_batch(rows, policy.device)
        loss = -policy.logprobs(ids, where)[0].mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % every == 0:
            seconds = time.monotonic() - started
            progress = f"step {step + 1} of {steps}, loss {loss.item():.3f}, {seconds:.0f} s"
            print(f"  pre-training {size:,} parameters: {progress}", file=sys.stderr, flush=True)
    return policy


def to_batch(
    rows: list[tuple[list[int], list[int]]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ids and masks of different lengths as two tensors."""
    ids = pad_sequence([torch.tensor(row) for row, _ in rows], batch_first=True, padding_value=text.PADDING)
    mask = pad_sequence([torch.tensor(mask) for _, mask in rows], batch_first=True)
    return ids.to(device), mask.bool().to(device)
