"""``npm run train-demo``: trains a policy through the proxy, and compares it with training on wrong tokens."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

import torch

from . import check, drift, measure, model, pretrain, set_up, show, system, trainer


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="npm run train-demo --", description=__doc__)
    parser.add_argument(
        "--seeds", type=int, default=3, help="runs, each with its own tasks and random numbers (default 3)"
    )
    parser.add_argument(
        "--steps", type=int, default=trainer.Settings.steps, help="updates of a run (default %(default)s)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("train-demo"),
        help="directory of plots, numbers and the proxy's databases",
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of PyTorch in the trainer (default 1)"
    )
    parser.add_argument(
        "--check", action="store_true", help="check within a minute that everything works; CI runs it"
    )
    parser.add_argument(
        "--experiment",
        choices=["drift", "measure"],
        help="drift: also train on tokens that are wrong; measure: the cost of the proxy, and exactness",
    )
    parser.add_argument(
        "--arms", default=",".join(drift.ARMS), help="of the experiment drift (default %(default)s)"
    )
    parser.add_argument(
        "--size", choices=list(model.SIZES), default="tiny", help="of the policy of measure (default tiny)"
    )
    parser.add_argument("--device", default="cpu", help="of the policy of measure: cpu or cuda (default cpu)")
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16"],
        default="float32",
        help="of the engine's weights in measure (default float32)",
    )
    options = parser.parse_args()
    if unknown := sorted(set(options.arms.split(",")) - set(drift.ARMS)):
        parser.error(f"there is no arm {unknown[0]!r}; there are {', '.join(drift.ARMS)}")
    torch.set_num_threads(options.threads)
    # The processes have other working directories.
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.check:
        return check.run(options.out)
    if options.experiment == "drift":
        weights = pretrain.pretrained(set_up.cache(), seed=0)
        drift.run(weights, options.out, options.seeds, options.steps, options.arms.split(","))
        return 0
    if options.experiment == "measure":
        placement = model.Placement(options.device, options.dtype)
        weights = pretrain.pretrained(
            set_up.cache(), 0, shape=model.SIZES[options.size], device=options.device
        )
        return measure.run(weights, options.out, placement, options.steps)
    return learn(options)


def learn(options: argparse.Namespace) -> int:
    """Trains the policy once for each seed."""
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
    # SIGTERM stops the started processes as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
