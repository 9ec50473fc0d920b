"""The policy that training begins with: half a minute of imitation, made once and found again by its content."""

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
#: The share of the steps in which the teacher makes no mistake: copying is learnt faster from what can be copied.
CAREFULLY = 0.7


def pretrained(cache: Path, seed: int, steps: int = STEPS) -> Path:
    """The file of the policy for a seed; trains it if no file was made from the same code and numbers."""
    sources = b"".join(Path(part.__file__).read_bytes() for part in (dialogues, model, tasks, text))
    made_of = sources + Path(__file__).read_bytes() + text.TEMPLATE.encode() + f"{seed} {steps}".encode()
    path = cache / f"pretrained-{hashlib.sha256(made_of).hexdigest()[:16]}.pt"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        model.save(imitate(seed, steps), path)
    return path


def imitate(
    seed: int, steps: int, draw: Callable[[random.Random], tasks.Task] = tasks.draw_task, every: int = 50
) -> model.Policy:
    """A new policy that has learnt the teacher's ways on tasks of ``draw``."""
    torch.manual_seed(seed)
    dice = random.Random(seed)
    policy = model.Policy()
    size = sum(weight.numel() for weight in policy.parameters())
    optimizer = torch.optim.AdamW(policy.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    warm_up = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, max(0.02, 1 - step / steps))
    )
    started = time.monotonic()
    for step in range(steps):
        careful = step < CAREFULLY * steps
        ids, where = batch_of([dialogues.draw_dialogue(dice, draw, careful=careful) for _ in range(BATCH)])
        loss = -policy.logprobs(ids, where)[0].mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % every == 0:
            seconds = time.monotonic() - started
            where = f"step {step + 1} of {steps}, loss {loss.item():.3f}, {seconds:.0f} s"
            print(f"  pre-training {size:,} parameters: {where}", file=sys.stderr, flush=True)
    return policy


def batch_of(rows: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and masks of different lengths as two tensors."""
    ids = pad_sequence([torch.tensor(row) for row, _ in rows], batch_first=True, padding_value=text.PADDING)
    mask = pad_sequence([torch.tensor(mask) for _, mask in rows], batch_first=True)
    return ids, mask.bool()
