"""``npm run train-demo``: a policy learns through the proxy, or what becomes of it when its tokens are wrong."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

import torch

from . import check, drift, model, pretrain, set_up, show, system, trainer


def main() -> int:
    """Runs what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="npm run train-demo --", description=__doc__)
    parser.add_argument(
        "--seeds", type=int, default=3, help="runs, each with tasks and dice of its own (default 3)"
    )
    parser.add_argument(
        "--steps", type=int, default=trainer.Settings.steps, help="updates of a run (default %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("train-demo"), help="for plots, numbers and the proxy's databases"
    )
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch in the trainer (default 1)")
    parser.add_argument(
        "--check", action="store_true", help="a minute's check that all of it works, as CI runs it"
    )
    parser.add_argument("--experiment", choices=["drift"], help="train in ways that are wrong as well")
    parser.add_argument(
        "--arms", default=",".join(drift.ARMS), help="of the experiment (default %(default)s)"
    )
    options = parser.parse_args()
    if unknown := sorted(set(options.arms.split(",")) - set(drift.ARMS)):
        parser.error(f"there is no arm {unknown[0]!r}; there are {', '.join(drift.ARMS)}")
    torch.set_num_threads(options.threads)
    # What it starts runs in folders of its own.
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.check:
        return check.run(options.out)
    if options.experiment:
        weights = pretrain.pretrained(set_up.cache(), seed=0)
        drift.run(weights, options.out, options.seeds, options.steps, options.arms.split(","))
        return 0
    return learn(options)


def learn(options: argparse.Namespace) -> int:
    """The policy learns, once for each seed."""
    weights = pretrain.pretrained(set_up.cache(), seed=0)
    runs: dict[str, list[show.Step]] = {}
    started = time.monotonic()
    for seed in range(options.seeds):
        steps = runs[f"seed {seed}"] = []
        print(f"\nseed {seed}\n{show.header()}", flush=True)
        torch.manual_seed(seed)
        policy = model.load(weights)
        settings = trainer.Settings(steps=options.steps)
        with system.running(
            options.out / f"seed-{seed}", weights, context=policy.shape.context, seed=seed
        ) as where:
            for step in trainer.Trainer(where, policy, settings, seed).run():
                steps.append(step)
                print(show.line(step), flush=True)
    (options.out / "runs.json").write_text(json.dumps(runs, indent=1))
    show.plot(runs, options.out / "training.png")
    print(
        f"\n{time.monotonic() - started:.0f} s of training. Mean reward of the first and of the last five steps:"
    )
    for name, steps in runs.items():
        first, last = (sum(step["reward"] for step in part) / len(part) for part in (steps[:5], steps[-5:]))
        print(f"  {name}: {first:.2f} to {last:.2f}")
    print(f"\nThe plot is {options.out / 'training.png'}. What was recorded:")
    seed = options.out / "seed-0"
    print(f"  bin/llm-proxy view --db {seed / 'proxy.db'} --tokenizer {seed / 'model'}")
    return 0


if __name__ == "__main__":
    # Ended by a supervisor, it ends what it has started as it does after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
