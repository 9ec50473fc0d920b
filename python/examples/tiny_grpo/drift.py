"""The experiment: the same training with exact tokens, and with tokens that are wrong in common ways."""

from __future__ import annotations

import dataclasses
import json
import math
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import model, show, system, tasks, text
from .trainer import Line, Row, Settings, Trainer, proxy_rows

TOP_P = 0.8
NUCLEUS = {"top_p": TOP_P}


@dataclasses.dataclass(frozen=True)
class Arm:
    """A way to train."""

    title: str
    token_mode: bool = True
    agent_flags: tuple[str, ...] = ()
    to_rows: Callable[[system.System, list[Line], float], list[Row]] = proxy_rows
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


def retokenized_rows(where: system.System, lines: list[Line], advantage: float) -> list[Row]:
    """Returns the conversation's text tokenized by the trainer, with the recorded logprobs assigned one by one."""
    turns = [turn for turn in _turns(where, lines) if turn["status"] == "completed"]
    if not turns:
        return []
    last = turns[-1]
    response = {
        "role": "assistant",
        "content": last["completion_text"],
        "tool_calls": last["tool_calls"] or None,
    }
    messages = [*last["request_messages"], response]
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    recorded = iter([turn["completion_logprobs"] for turn in turns])
    for count, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = text.encode(text.render(messages[:count], tasks.TOOLS, open_turn=True))
        after = text.encode(text.render(messages[: count + 1], tasks.TOOLS, open_turn=False))[:-1]
        known = next(recorded, [])[: len(after) - len(before)]
        ids, mask = after, mask + [0] * (len(before) - len(mask)) + [1] * (len(after) - len(before))
        logprobs += (
            [0.0] * (len(before) - len(logprobs))
            + known
            + [math.nan] * (len(after) - len(before) - len(known))
        )
    return [Row(ids, mask, logprobs, advantage, _versions(lines))]


def retokenized_rows_without_logprobs(where: system.System, lines: list[Line], advantage: float) -> list[Row]:
    """Returns the same rows without logprobs. The trainer computes them, so that each ratio is 1."""
    rows = retokenized_rows(where, lines, advantage)
    return [dataclasses.replace(row, logprobs=[math.nan] * len(row.logprobs)) for row in rows]


def all_turns(where: system.System, lines: list[Line], advantage: float) -> list[Row]:
    """Returns a row for each completed turn, side requests and abandoned branches included."""
    return [
        Row(
            ids=turn["prompt_token_ids"] + turn["completion_token_ids"],
            mask=[0] * len(turn["prompt_token_ids"]) + [1] * len(turn["completion_token_ids"]),
            logprobs=[0.0] * len(turn["prompt_token_ids"]) + turn["completion_logprobs"],
            advantage=advantage,
            versions=(turn["weight_version_start"], turn["weight_version_end"]),
        )
        for turn in _turns(where, lines)
        if turn["status"] == "completed"
    ]


ARMS = {
    "a": Arm("token mode"),
    "b": Arm("chat mode, agent tidies", token_mode=False, agent_flags=("--tidy",)),
    "c1": Arm("re-tokenized, recorded logprobs", to_rows=retokenized_rows),
    "c2": Arm("re-tokenized, logprobs recomputed", to_rows=retokenized_rows_without_logprobs),
    "d": Arm("side calls and ghosts trained", agent_flags=("--noisy",), to_rows=all_turns),
    "e1": Arm(f"top_p {TOP_P}, no mask", settings=NUCLEUS),
    "e2": Arm(f"top_p {TOP_P}, with mask", settings=NUCLEUS | {"sampling_mask": True}),
}


def run(weights: Path, out: Path, seeds: int, steps: int, names: list[str]) -> None:
    """Trains every arm with every seed, except for runs whose results are in ``out``."""
    for seed in range(seeds):
        for name in names:
            path = out / f"drift-{name}-{seed}.json"
            if not path.exists():
                print(f"\n({name}) {ARMS[name].title}, seed {seed}\n{show.header()}", flush=True)
                steps_done = _train(ARMS[name], weights, out / "drift", seed, steps)
                path.write_text(json.dumps(steps_done, indent=1))
    found = {name: _found(out, name) for name in ARMS}
    found = {name: runs for name, runs in found.items() if runs}
    print(f"\n{table(found)}")
    show.plot_arms({f"({name}) {ARMS[name].title}": runs for name, runs in found.items()}, out / "drift.png")
    print(f"\nThe picture is {out / 'drift.png'}.")


def _train(arm: Arm, weights: Path, directory: Path, seed: int, steps: int) -> list[show.Step]:
    torch.manual_seed(seed)
    policy = model.load(weights)
    settings = Settings(**{"steps": steps, "overlap_every": steps + 1} | arm.settings)
    context, figures = policy.shape.context, []
    with system.running(
        directory, weights, context=context, seed=seed, token_mode=arm.token_mode, agent_flags=arm.agent_flags
    ) as where:
        for step in Trainer(where, policy, settings, seed, to_rows=arm.to_rows).run():
            figures.append(step)
            print(show.line(step), flush=True)
    return figures


def _found(out: Path, name: str) -> list[list[show.Step]]:
    return [json.loads(path.read_text()) for path in sorted(out.glob(f"drift-{name}-*.json"))]


def table(found: dict[str, list[list[show.Step]]]) -> str:
    """Returns a Markdown table: for each arm the means over its seeds, with their spread."""
    lines = [
        "| | seeds | reward, all steps | reward, last 5 | largest error of ratio | its mean | clipped | rows a step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in found.items():
        every = [step for steps in runs for step in steps]
        area = [_mean(steps, "reward") for steps in runs]
        last = [_mean(steps[-5:], "reward") for steps in runs]
        cells = [
            f"({name}) {ARMS[name].title}",
            f"{len(runs)}",
            f"{sum(area) / len(area):.2f} ({min(area):.2f} to {max(area):.2f})",
            f"{sum(last) / len(last):.2f} ({min(last):.2f} to {max(last):.2f})",
            f"{max(step['ratio_error_fresh'] for step in every):.1e}",
            f"{_mean(every, 'ratio_mean_fresh'):.3f}",
            f"{_mean(every, 'clip_share'):.1%}",
            f"{_mean(every, 'rows'):.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(steps: list[show.Step], name: str) -> float:
    return sum(step[name] for step in steps) / len(steps)


def _turns(where: system.System, lines: list[Line]) -> list[dict[str, Any]]:
    session = urllib.parse.quote(lines[0]["extra_fields"]["session_id"], safe="")
    with urllib.request.urlopen(f"{where.proxy_url}/sessions/{session}", timeout=120) as response:
        return json.load(response)["turns"]


def _versions(lines: list[Line]) -> tuple[str, str]:
    fields = lines[0]["extra_fields"]
    return fields["weight_version_min"], fields["weight_version_max"]
